// SPDX-License-Identifier: Apache-2.0
#include "ranks/rank_processes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "common/files.hpp"
#include "common/shared_memory.hpp"
#include "magi/error.hpp"

namespace magi::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

RankProcesses three_ranks() {
  return {.num_ranks = 3, .name = "test", .deadline = std::chrono::seconds(20)};
}

TEST(RankProcesses, EveryRankLeavesWhatItDidInSharedMemory) {
  const SharedMemory memory(3);
  EXPECT_EQ(memory.data()[1], std::byte{0});
  run_rank_processes(three_ranks(), [&](const std::shared_ptr<Communicator>& group) {
    const auto rank = static_cast<std::byte>(group->rank());
    const auto all = group->allgather_sync({&rank, 1});
    memory.data()[group->rank()] = all.back()[0];
  });
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(memory.data()[rank], std::byte{2});
}

TEST(RankProcesses, TheCauseIsToldAndNotItsConsequences) {
  const auto fail_with = [](const auto& fail) {
    run_rank_processes(three_ranks(), [&](const std::shared_ptr<Communicator>& group) {
      if (group->rank() == 1) fail();
      group->allgather_sync({});
    });
  };
  EXPECT_THAT([&] { fail_with([] { throw InternalError("a wrong result"); }); },
              ThrowsMessage<InternalError>(HasSubstr("rank 1: a wrong result")));
  EXPECT_THAT([&] { fail_with([] { throw InvalidArgument("q is 0; allowed: 1"); }); },
              ThrowsMessage<InvalidArgument>(HasSubstr("rank 1: q is 0; allowed: 1")));
  EXPECT_THAT([&] { fail_with([] { ::raise(SIGKILL); }); },
              ThrowsMessage<InternalError>(HasSubstr("rank 1 was ended by signal 9")));
  // The others see it leave and say so: all of them name what their machine lacks.
  EXPECT_THAT([&] { fail_with([] { throw EnvironmentUnfit("no memory"); }); },
              ThrowsMessage<EnvironmentUnfit>(HasSubstr("rank 1")));
}

TEST(RankProcesses, ALaunchedProcessIsOneRank) {
  RankProcesses ranks = three_ranks();
  ranks.launched = LaunchEnv{
      .rank = 0, .num_ranks = 1, .rendezvous = "rank-processes-test-" + std::to_string(::getpid())};
  const pid_t process = ::getpid();
  std::int32_t num_ranks = 0;
  run_rank_processes(ranks, [&](const std::shared_ptr<Communicator>& group) {
    EXPECT_EQ(::getpid(), process);
    num_ranks = group->num_ranks();
  });
  EXPECT_EQ(num_ranks, 1);
}

}  // namespace
}  // namespace magi::cli
