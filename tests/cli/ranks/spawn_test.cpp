// SPDX-License-Identifier: Apache-2.0
#include "ranks/spawn.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "common/files.hpp"
#include "magi/error.hpp"

namespace magi::cli {
namespace {

using std::chrono::milliseconds;
using Body = std::function<void(std::int32_t rank)>;

/// What is thrown when three ranks run `body`, and which kind it is.
std::string fault_of(milliseconds deadline, const Body& body) {
  try {
    spawn_ranks(3, deadline, body);
  } catch (const InternalError& error) {
    return std::string("defect: ") + error.what();
  } catch (const EnvironmentUnfit& error) {
    return std::string("unfit: ") + error.what();
  }
  return "none";
}

TEST(Spawn, RanksThatEndWellLeaveNoFault) {
  EXPECT_EQ(fault_of(milliseconds(60000), [](std::int32_t) {}), "none");
}

TEST(Spawn, TheWorstFaultOfTheLowestRankIsTold) {
  EXPECT_EQ(fault_of(milliseconds(60000),
                     [](std::int32_t rank) {
                       if (rank == 0) throw EnvironmentUnfit("no memory");
                       if (rank > 0) throw InternalError("broken");
                     }),
            "defect: rank 1: broken");
  EXPECT_EQ(fault_of(milliseconds(60000),
                     [](std::int32_t rank) {
                       if (rank == 2) raise(SIGKILL);
                     }),
            "defect: rank 2 was ended by signal 9");
}

TEST(Spawn, AStoppedRankIsEndedOnceTheOthersHaveFailed) {
  EXPECT_EQ(fault_of(milliseconds(60000),
                     [](std::int32_t rank) {
                       if (rank == 0) raise(SIGSTOP);
                       throw EnvironmentUnfit("rank 0 did not arrive");
                     }),
            "unfit: rank 1: rank 0 did not arrive");
}

TEST(Spawn, AStoppedRankIsEndedAtTheDeadlineThoughTheOthersEndWell) {
  EXPECT_EQ(fault_of(milliseconds(200),
                     [](std::int32_t rank) {
                       if (rank == 1) raise(SIGSTOP);
                     }),
            "unfit: rank 1 was stopped for 200 ms and was ended");
}

TEST(Spawn, AStoppedRankIsNamedThoughOthersWaitForIt) {
  EXPECT_EQ(fault_of(milliseconds(100),
                     [](std::int32_t rank) {
                       if (rank == 1) raise(SIGSTOP);
                       std::this_thread::sleep_for(std::chrono::seconds(60));
                     }),
            "unfit: rank 1 was stopped for 100 ms and was ended");
}

TEST(Spawn, AllRanksStoppedAreEndedAtTheDeadline) {
  EXPECT_EQ(fault_of(milliseconds(500), [](std::int32_t) { raise(SIGSTOP); }),
            "unfit: rank 0 was stopped for 500 ms and was ended");
}

TEST(Spawn, ARankThatGoesOnAfterAStopIsNotEnded) {
  EXPECT_EQ(fault_of(milliseconds(10000),
                     [](std::int32_t rank) {
                       if (rank > 0) {
                         std::this_thread::sleep_for(milliseconds(500));
                         return;
                       }
                       const pid_t self = ::getpid();
                       if (::fork() == 0) {
                         std::this_thread::sleep_for(milliseconds(300));
                         ::kill(self, SIGCONT);
                         ::_exit(0);
                       }
                       raise(SIGSTOP);
                       std::this_thread::sleep_for(milliseconds(900));
                     }),
            "none");
}

}  // namespace
}  // namespace magi::cli
