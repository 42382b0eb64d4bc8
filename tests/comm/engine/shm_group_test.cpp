// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "comm/engine/ring_group.hpp"
#include "comm/exchange_case.hpp"
#include "comm/nccl_ranks.hpp"
#include "comm/net/process_watch.hpp"
#include "comm/ranks.hpp"

// What only ranks as processes can show. Every rank is forked; the test process starts no thread.
namespace magi::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A dead rank has to be reported within this.
constexpr seconds kDetection(2);

/// `is_killed`: this rank ends when it has sent what fits.
void cast_all(Communicator& group, std::int64_t rows, std::int32_t stage, bool is_killed = false) {
  const auto test = all_to_all_case(group.num_ranks(), rows);
  const auto rank = static_cast<std::size_t>(group.rank());
  const HostTensor own = make_tensor(DType::Float32, {rows, 64});
  const HostTensor received = make_tensor(DType::Float32, {test.needed_rows[rank], 64});
  const auto pending = group.group_cast({&own.view, 1}, {&received.view, 1}, test.ranks[rank],
                                        {.plan_digest = 0xfeed, .stage = stage});
  if (is_killed) raise(SIGKILL);
  pending->wait_sync();
}

TEST(ShmGroup, KilledRankIsReportedWithRankAndStage) {
  // Rank 2 dies only when the others have left stage 0: each says so through the pipe.
  int left[2];
  ASSERT_EQ(pipe(left), 0);
  run_ranks(Backend::Shm,
            {.num_ranks = 4, .options = {.deadline = std::chrono::minutes(10)}, .killed = {2}},
            [&](Communicator& group) {
              cast_all(group, 16, 0);
              char byte = 0;
              if (group.rank() == 2) {
                for (int i = 0; i < 3; ++i) ASSERT_EQ(read(left[0], &byte, 1), 1);
                raise(SIGKILL);
              }
              ASSERT_EQ(write(left[1], &byte, 1), 1);
              const auto start = Clock::now();
              const auto error = catch_comm_error([&] { cast_all(group, 16, 1); });
              EXPECT_EQ(error.failure(), CommFailure::PeerDied) << error.what();
              EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 2 died"), HasSubstr("stage 1"),
                                              HasSubstr("plan 0x000000000000feed")));
              EXPECT_LT(Clock::now() - start, kDetection);
            });
  close(left[0]);
  close(left[1]);
}

TEST(ShmGroup, RankKilledInMidTransferIsReportedByAll) {
  // A window far smaller than the rows: every rank is in the middle of sending and receiving.
  run_ranks(Backend::Shm,
            {.num_ranks = 4,
             .options = {.deadline = std::chrono::minutes(10), .window_bytes = 1},
             .max_ring_bytes = 8192,
             .killed = {1}},
            [](Communicator& group) {
              const auto error =
                  catch_comm_error([&] { cast_all(group, 20000, 3, group.rank() == 1); });
              EXPECT_EQ(error.failure(), CommFailure::PeerDied) << error.what();
              EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1"), HasSubstr("stage 3")));
            });
}

TEST(ShmGroup, ZombieCountsAsDead) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    pause();
    _exit(0);
  }
  std::ifstream stat("/proc/" + std::to_string(child) + "/stat");
  comm::ProcessId id{.pid = child};
  std::string field;
  for (int i = 1; i <= 21; ++i) stat >> field;
  stat >> id.start_ticks;
  const comm::ProcessWatch watch({id, comm::own_process()});
  EXPECT_FALSE(watch.has_ended(0));
  EXPECT_FALSE(watch.has_ended(1));
  kill(child, SIGKILL);
  // Not reaped: it stays a zombie.
  for (int i = 0; i < 200 && !watch.has_ended(0); ++i) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_TRUE(watch.has_ended(0));
  // A watch that comes too late, and one for another process of the same number.
  EXPECT_TRUE(comm::ProcessWatch({id}).has_ended(0));
  const comm::ProcessId reused{.pid = getpid(), .start_ticks = 1};
  EXPECT_TRUE(comm::ProcessWatch({reused}).has_ended(0));
  waitpid(child, nullptr, 0);
}

TEST(ShmGroup, StoppedAndContinuedRankIsNoError) {
  run_ranks(Backend::Shm, {.num_ranks = 2}, [](Communicator& group) {
    if (group.rank() == 1) {
      const pid_t self = getpid();
      const pid_t waker = fork();
      if (waker == 0) {
        std::this_thread::sleep_for(milliseconds(500));
        kill(self, SIGCONT);
        _exit(0);
      }
      raise(SIGSTOP);
      waitpid(waker, nullptr, 0);
    }
    cast_all(group, 16, 0);
    group.close_sync();
  });
}

TEST(ShmGroup, SignalsInterruptNothing) {
  run_ranks(Backend::Shm, {.num_ranks = 2}, [](Communicator& group) {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    sigaction(SIGUSR1, &action, nullptr);
    const pid_t self = getpid();
    const pid_t storm = fork();
    if (storm == 0) {
      for (int i = 0; i < 400; ++i) {
        kill(self, SIGUSR1);
        std::this_thread::sleep_for(milliseconds(1));
      }
      _exit(0);
    }
    for (std::int32_t stage = 0; stage < 20; ++stage) {
      if (group.rank() == 1) std::this_thread::sleep_for(milliseconds(10));
      cast_all(group, 2000, stage);
    }
    waitpid(storm, nullptr, 0);
    group.close_sync();
  });
}

std::size_t count_descriptors() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    count += !entry.path().empty();
  }
  return count;
}

std::size_t count_group_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("memfd:magi") < line.size();
  return count;
}

TEST(ShmGroup, NothingLeaksWhetherClosedOrAborted) {
  const std::string name = unique_name();
  run_processes(3, [&](std::int32_t rank) {
    // The first round may open what stays open for good, such as the log.
    std::size_t descriptors = 0;
    for (int round = 0; round < 6; ++round) {
      {
        const auto bootstrap =
            local_bootstrap(name + "-" + std::to_string(round), rank, 3, seconds(20));
        const auto group = make_shm_group(rank, 3, bootstrap);
        if (round % 2 == 0) {
          cast_all(*group, 3000, 0);
          EXPECT_GT(count_group_mappings(), 1u);
          group->close_sync();
          EXPECT_EQ(count_group_mappings(), 0u);
        } else {
          // The abort may meet the others in any of their casts.
          catch_comm_error([&] {
            for (std::int32_t stage = 0;; ++stage) {
              cast_all(*group, 3000, stage);
              if (rank == 0) group->abort("enough");
            }
          });
        }
      }
      EXPECT_EQ(count_group_mappings(), 0u);
      if (round == 0) descriptors = count_descriptors();
      EXPECT_EQ(count_descriptors(), descriptors) << "round " << round;
    }
  });
}

TEST(ShmGroup, WithoutMemoryForAWindowRowsGoThroughTheFirstOne) {
  run_ranks(Backend::Shm, {.num_ranks = 2}, [](Communicator& group) {
    // A limit on file size makes the machine refuse a larger window.
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 4096, .rlim_max = 4096};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    const std::size_t mappings = count_group_mappings();
    cast_all(group, 3000, 0);
    EXPECT_EQ(count_group_mappings(), mappings);
    group.close_sync();
  });
}

TEST(ShmGroup, MemoryIsPrivateAndHasNoName) {
  const auto region = comm::make_group_region(4, 1);
  struct stat status {};
  ASSERT_EQ(fstat(region->fd(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(status.st_nlink, 0u);
}

TEST(ShmGroup, AnyAllgatherServesAsBootstrapUnlessItMixesRanks) {
  // The bootstrap is a group itself: no socket, no name.
  run_ranks(Backend::Shm, {.num_ranks = 3}, [](Communicator& first) {
    const Bootstrap bootstrap = bootstrap_over(first);
    const auto second = make_shm_group(first.rank(), 3, bootstrap);
    cast_all(*second, 10, 0);
    second->close_sync();
    // Two ranks believe to be rank 1.
    const std::int32_t claimed = first.rank() == 2 ? 1 : first.rank();
    const auto error = catch_comm_error([&] { make_shm_group(claimed, 3, bootstrap); });
    EXPECT_EQ(error.failure(), CommFailure::System);
    EXPECT_THAT(error.what(), HasSubstr("calls itself rank 1 of 3"));
    first.close_sync();
  });
}

}  // namespace
}  // namespace magi::testing
