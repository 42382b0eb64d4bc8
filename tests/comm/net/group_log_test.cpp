// SPDX-License-Identifier: Apache-2.0
#include "comm/net/group_log.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "comm/ranks.hpp"

// What the log tells of groups whose ranks are threads of the test.
namespace magi::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Keeps what is logged while it lives.
class KeptLog {
 public:
  explicit KeptLog(LogLevel threshold) {
    set_log_sink(
        [this](LogLevel level, std::string_view module, std::string_view text) {
          const std::lock_guard lock(mutex_);
          lines_.push_back(std::to_string(static_cast<int>(level)) + " " + std::string(module) +
                           ": " + std::string(text));
        },
        threshold);
  }
  ~KeptLog() { set_log_sink(nullptr, LogLevel::Warn); }
  KeptLog(const KeptLog&) = delete;
  KeptLog& operator=(const KeptLog&) = delete;

  /// In any order of the ranks.
  std::vector<std::string> sorted() {
    const std::lock_guard lock(mutex_);
    std::ranges::sort(lines_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

void use_in_order(Communicator& group) {
  group.allgather_sync({});
  group.close_sync();
}

void abort_on_rank_0(Communicator& group) {
  group.allgather_sync({});
  if (group.rank() == 0) {
    group.abort("out of paper");
    group.abort("again");
  }
  const CommError error = catch_comm_error([&] {
    for (;;) group.allgather_sync({});
  });
  EXPECT_EQ(error.failure(), CommFailure::Aborted) << error.what();
}

class GroupLog : public ::testing::TestWithParam<Backend> {};

INSTANTIATE_TEST_SUITE_P(Backends, GroupLog,
                         ::testing::Values(Backend::Threads, Backend::Bytes, Backend::Nccl),
                         [](const auto& backend) { return backend_name(backend.param); });

TEST_P(GroupLog, AGroupThatEndsInOrderWarnsOfNothing) {
  KeptLog kept(LogLevel::Warn);
  run_ranks(GetParam(), {.num_ranks = 3}, use_in_order);
  EXPECT_THAT(kept.sorted(), IsEmpty());
}

TEST(GroupLog, TellsWhatCarriesRows) {
  KeptLog kept(LogLevel::Info);
  run_ranks(Backend::Threads, {.num_ranks = 2}, use_in_order);
  EXPECT_THAT(kept.sorted(), ElementsAre("2 comm: rank 0 of 2 is in a group over threads: all "
                                         "ranks are threads of this process"));
}

TEST(GroupLog, TheRankThatAbortsTellsWhyOnce) {
  for (const Backend backend : {Backend::Threads, Backend::Bytes}) {
    KeptLog kept(LogLevel::Error);
    run_ranks(backend, {.num_ranks = 2}, abort_on_rank_0);
    EXPECT_THAT(kept.sorted(), ElementsAre("0 comm: rank 0 aborts its group: out of paper"));
  }
}

TEST(GroupLog, ARankThatHearsOfAnAbortBesideItsCallsTellsSo) {
  KeptLog kept(LogLevel::Error);
  run_ranks(Backend::Nccl, {.num_ranks = 2}, abort_on_rank_0);
  EXPECT_THAT(kept.sorted(), ElementsAre("0 comm: rank 0 aborts its group: out of paper",
                                         "0 comm: the group of rank 1 has failed: rank 0 "
                                         "aborted: out of paper"));
}

TEST(GroupLog, AnErrorThatIsThrownIsNotLoggedToo) {
  KeptLog kept(LogLevel::Debug);
  run_ranks(Backend::Bytes, {.num_ranks = 2}, [](Communicator& group) {
    std::vector<std::byte> bytes(4);
    const std::vector<std::int64_t> too_few{1};
    EXPECT_THROW(group.start_bytes({.send = bytes.data(),
                                    .receive = bytes.data(),
                                    .send_bytes = too_few,
                                    .receive_bytes = too_few}),
                 InvalidArgument);
    group.close_sync();
  });
  EXPECT_THAT(kept.sorted(), IsEmpty());
}

TEST(GroupLog, ProcessesThatEndAreNoError) {
  KeptLog kept(LogLevel::Info);
  comm::log_found_failure(1, CommError("rank 0 ended", CommFailure::PeerDied));
  comm::log_found_failure(1, CommError("rank 0 waited", CommFailure::Timeout));
  EXPECT_THAT(kept.sorted(), ElementsAre("0 comm: the group of rank 1 has failed: rank 0 waited",
                                         "2 comm: the group of rank 1 has failed: rank 0 ended"));
}

}  // namespace
}  // namespace magi::testing
