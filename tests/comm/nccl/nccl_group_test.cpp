// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_group.hpp"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "comm/fake_nccl.hpp"
#include "comm/nccl_ranks.hpp"
#include "comm/ranks.hpp"

// The nccl group over a library that stands for NCCL: how it starts, fails and ends. What it moves
// is checked in conformance_test.cpp and row_exchanger_test.cpp.
namespace magi::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

using Clock = std::chrono::steady_clock;

/// A function that only the library for tests has.
template <typename Function>
Function* control(Function*, const char* name) {
  void* library = dlopen(fake_nccl().c_str(), RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function*>(dlsym(library, name));
}
#define CONTROL(name) control(&(name), #name)

/// Each rank in a thread with a bootstrap over a group of threads.
void run_booted(std::int32_t num_ranks, const RankBody& body) {
  run_ranks(Backend::Threads, {.num_ranks = num_ranks}, body);
}

/// One byte to and from every rank.
void exchange_bytes(Communicator& group, std::int32_t stage = 0) {
  const auto count = static_cast<std::size_t>(group.num_ranks());
  const std::vector<std::int64_t> sizes(count, 1);
  const std::vector<std::byte> sent(count, static_cast<std::byte>(group.rank() + 1));
  std::vector<std::byte> received(count);
  group
      .start_bytes({.send = sent.data(),
                    .receive = received.data(),
                    .send_bytes = sizes,
                    .receive_bytes = sizes,
                    .kind = ExchangeKind::Cast,
                    .tag = {.plan_digest = 0xabc, .stage = stage}})
      ->wait_sync();
  for (std::size_t peer = 0; peer < count; ++peer) {
    EXPECT_EQ(received[peer], static_cast<std::byte>(peer + 1));
  }
}

TEST(NcclGroup, LeavesNothingBehind) {
  run_booted(3, [](Communicator& boot) {
    for (int round = 0; round < 2; ++round) {
      const auto group = make_fake_nccl_group(boot, {.max_ctas = 7});
      EXPECT_STREQ(group->backend(), "nccl");
      exchange_bytes(*group);
      if (round == 0) group->close_sync();
      if (round == 0) {
        EXPECT_THAT(catch_comm_error([&] { exchange_bytes(*group); }).what(),
                    HasSubstr("after its close"));
      }
    }
  });
  EXPECT_EQ(CONTROL(fake_nccl_num_live)(), 0);
  EXPECT_EQ(CONTROL(fake_nccl_max_ctas)(), 7);
}

TEST(NcclGroup, MemoryOfAnotherDeviceIsRefused) {
  run_booted(1, [](Communicator& boot) {
    const auto group = make_fake_nccl_group(boot, {});
    const std::int64_t size = 0;
    EXPECT_THROW(
        group->start_bytes({.send_bytes = {&size, 1}, .receive_bytes = {&size, 1}, .device = 3}),
        InvalidArgument);
    exchange_bytes(*group);
  });
}

TEST(NcclGroup, RankThatCannotJoinIsNamedToAll) {
  run_booted(3, [](Communicator& boot) {
    const bool is_bad = boot.rank() == 1;
    const NcclOptions options{.library = is_bad ? old_nccl() : fake_nccl()};
    const CommError error = catch_comm_error([&] { make_fake_nccl_group(boot, options); });
    if (!is_bad) {
      EXPECT_THAT(error.what(), HasSubstr("rank 1 cannot join the group: "));
    }
    EXPECT_THAT(error.what(), HasSubstr("has version 2.17.3; allowed: 2.18.0 and later"));
    // The processes can go on.
    exchange_bytes(*make_fake_nccl_group(boot, {}));
  });
}

TEST(NcclGroup, SameGpuTwiceIsRefusedEverywhere) {
  run_booted(3, [](Communicator& boot) {
    const auto device = std::make_shared<FakeDevice>(boot.rank() == 1 ? "b" : "a");
    const CommError error = catch_comm_error([&] { make_fake_nccl_group(boot, {}, device); });
    EXPECT_STREQ(error.what(),
                 "rank 0 and rank 2 have the same GPU; allowed: one rank for each GPU");
  });
}

TEST(NcclGroup, DifferentOptionsAreRefusedEverywhere) {
  run_booted(2, [](Communicator& boot) {
    const CommError error =
        catch_comm_error([&] { make_fake_nccl_group(boot, {.max_ctas = 4 * boot.rank()}); });
    EXPECT_STREQ(error.what(),
                 "max_ctas is 4 on rank 1, 0 on rank 0; allowed: one value on all ranks");
  });
}

TEST(NcclGroup, RankThatSendsNothingIsNamedAtTheDeadline) {
  run_booted(3, [](Communicator& boot) {
    const auto group = make_fake_nccl_group(boot, {.deadline = milliseconds(400)});
    exchange_bytes(*group);
    if (boot.rank() == 2) {
      EXPECT_THAT(await_failure(*group).what(),
                  HasSubstr("waited 400 ms for rank 0, rank 1, rank 2"));
      return;
    }
    const CommError error = catch_comm_error([&] { exchange_bytes(*group, 5); });
    EXPECT_EQ(error.failure(), CommFailure::Timeout);
    EXPECT_THAT(error.what(), HasSubstr("waited 400 ms for rank 0, rank 1, rank 2 in stage 5 of "
                                        "group_cast 1, plan 0x0000000000000abc"));
  });
  EXPECT_EQ(CONTROL(fake_nccl_num_live)(), 0);
}

TEST(NcclGroup, ExchangeThatNeverEndsOnTheGpuIsAbortedAtTheDeadline) {
  const int num_aborts = CONTROL(fake_nccl_num_aborts)();
  run_booted(2, [](Communicator& boot) {
    const auto device = std::make_shared<FakeDevice>("gpu " + std::to_string(boot.rank()));
    const auto group = make_fake_nccl_group(boot, {.deadline = milliseconds(300)}, device);
    device->is_stuck = boot.rank() == 0;
    exchange_bytes(*group, 2);
    const CommError error = await_failure(*group);
    EXPECT_EQ(error.failure(), CommFailure::Timeout);
    EXPECT_THAT(error.what(), HasSubstr("rank 0 waited 300 ms for rank 0, rank 1 in stage 2"));
  });
  EXPECT_EQ(CONTROL(fake_nccl_num_aborts)(), num_aborts + 2);
  EXPECT_EQ(CONTROL(fake_nccl_num_live)(), 0);
}

TEST(NcclGroup, WhatNcclReportsEndsTheGroupOnAllRanks) {
  run_booted(3, [](Communicator& boot) {
    const auto group = make_fake_nccl_group(boot, {.deadline = seconds(20)});
    exchange_bytes(*group);
    boot.allgather_sync({});
    if (boot.rank() == 1) CONTROL(fake_nccl_report)(1, 6);
    const CommError error = await_failure(*group);
    EXPECT_EQ(error.failure(), CommFailure::PeerDied);
    EXPECT_STREQ(error.what(),
                 "rank 1: NCCL failed in the communicator: remote process exited or there was a "
                 "network error (last words)");
  });
  EXPECT_EQ(CONTROL(fake_nccl_num_live)(), 0);
}

TEST(NcclGroup, AbortFromAnotherThreadWakesEveryRank) {
  run_booted(3, [](Communicator& boot) {
    const auto group = make_fake_nccl_group(boot, {.deadline = seconds(20)});
    std::optional<std::jthread> other;
    if (boot.rank() == 0) {
      other.emplace([&] {
        std::this_thread::sleep_for(milliseconds(50));
        group->abort("a reason");
      });
    }
    // Rank 2 never comes, so that the others wait within the exchange.
    const CommError error = boot.rank() == 2 ? await_failure(*group)
                                             : catch_comm_error([&] { exchange_bytes(*group); });
    EXPECT_EQ(error.failure(), CommFailure::Aborted);
    EXPECT_STREQ(error.what(), "rank 0 aborted: a reason");
  });
  EXPECT_EQ(CONTROL(fake_nccl_num_live)(), 0);
}

/// Gives this process's host another name for it alone; false where it may not.
bool calls_its_host(const std::string& name) {
  return unshare(CLONE_NEWUTS) == 0 && sethostname(name.data(), name.size()) == 0;
}

TEST(NcclGroup, KilledProcessIsNamedWhereverTheOthersWait) {
  const std::string name = unique_name();
  // The library joins ranks of one process alone: these wait for each other until one dies.
  run_processes(3,
                [&](std::int32_t rank) {
                  const auto bootstrap = local_bootstrap(name, rank, 3, seconds(20));
                  const std::byte has_moved{rank == 1 && calls_its_host("host1")};
                  const bool is_apart = bootstrap({&has_moved, 1})[1][0] != std::byte{};
                  std::jthread killer([&] {
                    if (rank != 1) return;
                    std::this_thread::sleep_for(milliseconds(300));
                    raise(SIGKILL);
                  });
                  const auto make_device = [rank] {
                    return std::make_shared<FakeDevice>(std::to_string(rank));
                  };
                  const auto begin = Clock::now();
                  const CommError error = catch_comm_error([&] {
                    comm::make_nccl_group_on(rank, 3, make_device, bootstrap,
                                             {.library = fake_nccl()});
                  });
                  EXPECT_LT(Clock::now() - begin, seconds(10)) << "far from the deadline";
                  EXPECT_EQ(error.failure(), CommFailure::PeerDied);
                  const char* lost = is_apart ? "rank 1 on host1 ended" : "rank 1 ended";
                  EXPECT_THAT(error.what(), HasSubstr(lost));
                },
                {1});
}

TEST(NcclGroup, RankThatLeavesWithoutACloseIsNoFailure) {
  run_booted(2, [](Communicator& boot) {
    auto group = make_fake_nccl_group(boot, {.deadline = seconds(20)});
    exchange_bytes(*group);
    boot.allgather_sync({});
    if (boot.rank() == 1) group.reset();
    boot.allgather_sync({});
    std::this_thread::sleep_for(milliseconds(150));
    if (boot.rank() == 0) {
      const std::int64_t none[2] = {0, 0};
      group->start_bytes({.send_bytes = none, .receive_bytes = none})->wait_sync();
    }
  });
}

TEST(NcclGroup, BadArgumentsAreRefused) {
  const auto refusal = [](std::int32_t rank, std::int32_t num_ranks, const NcclOptions& options) {
    const Bootstrap none = [](auto) { return std::vector<std::vector<std::byte>>(); };
    return refusal_of([&] { make_nccl_group(rank, num_ranks, 0, none, options); });
  };
  EXPECT_EQ(refusal(2, 2, {}), "rank is 2; allowed: 0 to 1");
  EXPECT_EQ(refusal(0, 1, {.max_ctas = -1}), "max_ctas is -1; allowed: 0 or more");
  EXPECT_EQ(refusal(0, 1, {.deadline = milliseconds(0)}),
            "deadline is 0 ms; allowed: 1 ms to 2^40 ms (34 years)");
  EXPECT_THROW(make_nccl_group(0, 1, 0, nullptr), InvalidArgument);
}

}  // namespace
}  // namespace magi::testing
