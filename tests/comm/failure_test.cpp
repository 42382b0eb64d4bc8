// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "comm/exchange_case.hpp"
#include "comm/ranks.hpp"
#include "comm/rows/call_options.hpp"

// What happens when something goes wrong, over each backend. Tests use deadlines to tell "at once"
// from "at the deadline"; none of them measures.
namespace magi::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr std::uint64_t kDigest = 0xfeed;

class Failure : public ::testing::TestWithParam<Backend> {
 protected:
  void run(const GroupSetup& setup, const RankBody& body) { run_ranks(GetParam(), setup, body); }
};

INSTANTIATE_TEST_SUITE_P(Backends, Failure, ::testing::Values(Backend::Threads, Backend::Shm),
                         [](const auto& backend) { return backend_name(backend.param); });

/// Also over a transport that compares nothing.
class Disagreement : public Failure {};

INSTANTIATE_TEST_SUITE_P(Backends, Disagreement,
                         ::testing::Values(Backend::Threads, Backend::Shm, Backend::Bytes),
                         [](const auto& backend) { return backend_name(backend.param); });

/// Everyone casts `rows` rows of 8 bytes to everyone.
struct AllCast {
  explicit AllCast(std::int32_t num_ranks, std::int64_t rows = 4)
      : test(all_to_all_case(num_ranks, rows)) {}

  struct Run {
    HostTensor own;
    HostTensor received;
    std::unique_ptr<PendingExchange> pending;
  };
  Run start(Communicator& group, ExchangeTag tag) const {
    const auto rank = static_cast<std::size_t>(group.rank());
    Run run{.own = make_tensor(DType::Float32, {test.owned_rows, 2}),
            .received = make_tensor(DType::Float32, {test.needed_rows[rank], 2})};
    fill(run.own.view, [&](const auto&) { return group.rank() + 1; });
    fill(run.received.view, [](const auto&) { return -1; });
    run.pending =
        group.group_cast({&run.own.view, 1}, {&run.received.view, 1}, test.ranks[rank], tag);
    return run;
  }
  ExchangeCase test;
};

void expect_untouched(const TensorView& tensor) {
  for_each_element(tensor, [&](const auto& at) { EXPECT_EQ(read_element(tensor, at), -1); });
}

TEST_P(Failure, LateRankIsNamedAtTheDeadline) {
  const AllCast cast(3);
  const GroupSetup setup{.num_ranks = 3, .options = {.deadline = std::chrono::milliseconds(300)}};
  run(setup, [&](Communicator& group) {
    if (group.rank() == 1) {
      // It is there, and never takes part.
      std::this_thread::sleep_for(std::chrono::milliseconds(900));
      return;
    }
    const auto error = catch_comm_error(
        [&] { cast.start(group, {.plan_digest = kDigest, .stage = 6}).pending->wait_sync(); });
    EXPECT_EQ(error.failure(), CommFailure::Timeout) << error.what();
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("waited 300 ms for rank 1"), HasSubstr("stage 6"),
                      HasSubstr("plan 0x000000000000feed"), HasSubstr("expected 32 bytes"),
                      HasSubstr("seen 0"), HasSubstr("rank " + std::to_string(group.rank()))));
    // The group is over; every further call says why.
    EXPECT_EQ(catch_comm_error([&] { group.allgather_sync({}); }).failure(), CommFailure::Timeout);
  });
}

TEST_P(Failure, WhoIsWaitedForByOthersThatWaitIsNamed) {
  // Rank 0 waits for rows of rank 1, which waits for rows of rank 2, which is not there.
  run({.num_ranks = 3, .options = {.deadline = std::chrono::milliseconds(600)}}, [](Communicator&
                                                                                        group) {
    if (group.rank() == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      return;
    }
    if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const HostTensor rows = make_tensor(DType::Float32, {1, 2});
    const HostTensor received = make_tensor(DType::Float32, {1, 2});
    const std::vector<PeerRows> none, from_1{{.peer = 1, .num_rows = 1}},
        from_2{{.peer = 2, .num_rows = 1}}, to_0{{.peer = 0, .num_rows = 1}};
    const RowExchange first{none, group.rank() == 1 ? from_2 : none};
    const RowExchange second{group.rank() == 1 ? to_0 : none, group.rank() == 0 ? from_1 : none};
    const auto error = catch_comm_error([&] {
      for (const RowExchange& exchange : {first, second}) {
        group.group_cast({&rows.view, 1}, {&received.view, 1}, exchange, {})->wait_sync();
      }
    });
    EXPECT_EQ(error.failure(), CommFailure::Timeout) << error.what();
    EXPECT_THAT(error.what(),
                HasSubstr("rank 0 waited 600 ms for rank 1, which waited for rank 2, in "));
  });
}

TEST_P(Disagreement, AnotherPlanIsNamedBeforeDataIsUsed) {
  const AllCast cast(3);
  run({.num_ranks = 3}, [&](Communicator& group) {
    const std::uint64_t digest = group.rank() == 2 ? 0xbad : kDigest;
    AllCast::Run exchange;
    const auto error = catch_comm_error([&] {
      exchange = cast.start(group, {.plan_digest = digest, .stage = 1});
      exchange.pending->wait_sync();
    });
    EXPECT_EQ(error.failure(), CommFailure::PlanMismatch) << error.what();
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("plan 0x0000000000000bad"), HasSubstr("plan 0x000000000000feed"),
                      HasSubstr("rank 2"), AnyOf(HasSubstr("rank 0"), HasSubstr("rank 1"))));
    if (group.rank() == 2 && !exchange.received.storage.empty()) {
      expect_untouched(exchange.received.view);
    }
  });
}

TEST_P(Failure, AnotherStageOrCallIsAMismatch) {
  const AllCast cast(2);
  run({.num_ranks = 2}, [&](Communicator& group) {
    const auto error = catch_comm_error([&] {
      cast.start(group, {.plan_digest = kDigest, .stage = group.rank()}).pending->wait_sync();
    });
    EXPECT_EQ(error.failure(), CommFailure::PlanMismatch) << error.what();
    EXPECT_THAT(error.what(), AllOf(HasSubstr("stage 0"), HasSubstr("stage 1")));
  });
  run({.num_ranks = 2}, [&](Communicator& group) {
    const auto error = catch_comm_error([&] {
      if (group.rank() == 0) group.allgather_sync({});
      cast.start(group, {.plan_digest = kDigest}).pending->wait_sync();
    });
    EXPECT_EQ(error.failure(), CommFailure::PlanMismatch) << error.what();
    EXPECT_THAT(error.what(), AllOf(HasSubstr("allgather"), HasSubstr("group_cast")));
  });
}

TEST_P(Disagreement, OtherOptionsOfACallAreNamed) {
  const AllCast cast(3);
  const auto options = [](double scale) {
    return comm::pack_options({.sink_axes = 2, .num_sinks = 1, .softmax_scale = scale});
  };
  run({.num_ranks = 3}, [&](Communicator& group) {
    const ExchangeTag tag{.plan_digest = kDigest, .options = options(group.rank() == 2 ? 2 : 1)};
    const auto error = catch_comm_error([&] { cast.start(group, tag).pending->wait_sync(); });
    EXPECT_EQ(error.failure(), CommFailure::PlanMismatch) << error.what();
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("calls with other options than rank"), HasSubstr("rank 2"),
                      HasSubstr(": softmax_scale; in stage 0 of group_cast")));
  });
}

TEST_P(Failure, AbortWakesEveryoneAtOnce) {
  const AllCast cast(4);
  // The deadline is far beyond the time limit of the test.
  run({.num_ranks = 4, .options = {.deadline = std::chrono::minutes(10)}},
      [&](Communicator& group) {
        if (group.rank() == 3) {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          group.abort("out of memory");
        }
        const auto error =
            catch_comm_error([&] { cast.start(group, {.stage = 2}).pending->wait_sync(); });
        EXPECT_EQ(error.failure(), CommFailure::Aborted) << error.what();
        EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 3"), HasSubstr("out of memory")));
      });
}

TEST_P(Failure, AbortFromAnotherThreadEndsACall) {
  run({.num_ranks = 2, .options = {.deadline = std::chrono::minutes(10)}}, [](Communicator& group) {
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      if (group.rank() == 0) group.abort("told to stop");
    });
    const auto error = catch_comm_error([&] {
      for (;;) group.allgather_sync({});
    });
    other.join();
    EXPECT_EQ(error.failure(), CommFailure::Aborted) << error.what();
  });
}

TEST_P(Failure, RankThatLeavesIsReported) {
  const AllCast cast(3);
  run({.num_ranks = 3, .options = {.deadline = std::chrono::minutes(10)}},
      [&](Communicator& group) {
        if (group.rank() == 1) return;  // destroyed without close_sync
        const auto error = catch_comm_error(
            [&] { cast.start(group, {.plan_digest = kDigest, .stage = 4}).pending->wait_sync(); });
        EXPECT_EQ(error.failure(), CommFailure::PeerDied) << error.what();
        EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1"), HasSubstr("stage 4")));
      });
}

TEST_P(Failure, RankThatFinishedMayLeaveBeforeTheOthersRead) {
  const AllCast cast(3);
  run({.num_ranks = 3}, [&](Communicator& group) {
    auto exchange = cast.start(group, {});
    if (group.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    exchange.pending->wait_sync();
  });
}

TEST_P(Failure, DroppedExchangeEndsTheGroup) {
  const AllCast cast(3);
  run({.num_ranks = 3, .options = {.deadline = std::chrono::minutes(10)}},
      [&](Communicator& group) {
        // Rank 2 comes late, so that nobody's exchange is complete when rank 0 drops its own.
        if (group.rank() == 2) std::this_thread::sleep_for(std::chrono::seconds(1));
        if (group.rank() == 0) cast.start(group, {.stage = 9});
        const auto error = catch_comm_error([&] {
          if (group.rank() == 0) group.allgather_sync({});
          cast.start(group, {.stage = 9}).pending->wait_sync();
        });
        EXPECT_EQ(error.failure(), CommFailure::Aborted) << error.what();
        EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 0 dropped"), HasSubstr("stage 9")));
      });
}

TEST_P(Failure, CallsAfterCloseSaySo) {
  run({.num_ranks = 2}, [](Communicator& group) {
    group.close_sync();
    group.close_sync();
    group.abort("too late");
    const auto error = catch_comm_error([&] { group.allgather_sync({}); });
    EXPECT_THAT(error.what(), HasSubstr("closed"));
    EXPECT_EQ(group.num_ranks(), 2);
  });
}

}  // namespace
}  // namespace magi::testing
