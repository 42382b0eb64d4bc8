// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <thread>

#include "comm/device_memory.hpp"
#include "comm/ranks.hpp"
#include "cuda/device.hpp"

// Moves of rows over NCCL itself: one process and one GPU for each rank. NOTE: processes are
// forked, and CUDA does not outlive a fork, so that this one never calls it.
namespace magi::testing {
namespace {

using ::testing::HasSubstr;

/// GPUs by their device files, without a call of CUDA.
std::int32_t num_gpus() {
  std::int32_t count = 0;
  while (std::filesystem::exists("/dev/nvidia" + std::to_string(count))) ++count;
  return count;
}

using DeviceBody = std::function<void(Communicator&, const TestMemory&)>;

class DeviceNccl : public ::testing::TestWithParam<std::int32_t> {
 protected:
  void SetUp() override {
    if (num_gpus() < GetParam()) {
      GTEST_SKIP() << GetParam() << " GPUs are not here: device test not run";
    }
  }

  static void run_rank(const std::string& name, std::int32_t rank, const NcclOptions& options,
                       const DeviceBody& body) {
    const auto bootstrap = local_bootstrap(name, rank, GetParam(), std::chrono::seconds(30));
    const auto group = make_nccl_group(rank, GetParam(), rank, bootstrap, options);
    const DeviceScope scope(rank);
    const Stream stream;
    const TestMemory memory = device_memory(rank, stream);
    body(*group, memory);
    stream.wait_sync();
  }

  static void run(const DeviceBody& body, const NcclOptions& options = {},
                  const std::vector<std::int32_t>& killed = {}) {
    const std::string name = unique_name();
    run_processes(
        GetParam(), [&](std::int32_t rank) { run_rank(name, rank, options, body); }, killed);
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, DeviceNccl, ::testing::Values(1, 2, 4),
                         ::testing::PrintToStringParamName());

TEST_P(DeviceNccl, MovesGiveWhatTheyMust) {
  run([](Communicator& group, const TestMemory& memory) {
    for (const RowCheck& check : row_checks()) {
      SCOPED_TRACE(check.name);
      check.run(group, memory);
    }
    group.close_sync();
  });
}

TEST_P(DeviceNccl, FewMultiprocessorsCarryTheSame) { run(check_cast, {.max_ctas = 4}); }

TEST_P(DeviceNccl, KilledRankIsNamed) {
  if (GetParam() == 1) GTEST_SKIP() << "one rank has no peers";
  const std::int32_t dead = GetParam() - 1;
  run(
      [&](Communicator& group, const TestMemory& memory) {
        check_cast(group, memory);
        if (group.rank() == dead) raise(SIGKILL);
        const auto begin = std::chrono::steady_clock::now();
        const CommError error = await_failure(group);
        EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
        EXPECT_EQ(error.failure(), CommFailure::PeerDied);
        EXPECT_THAT(error.what(), HasSubstr("rank " + std::to_string(dead) + " ended"));
      },
      {}, {dead});
}

TEST_P(DeviceNccl, AbortEndsAllRanks) {
  run([&](Communicator& group, const TestMemory& /*memory*/) {
    std::optional<std::jthread> other;
    if (group.rank() == 0) {
      other.emplace([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        group.abort("a reason");
      });
    }
    EXPECT_STREQ(await_failure(group).what(), "rank 0 aborted: a reason");
  });
}

TEST_P(DeviceNccl, SameGpuTwiceIsRefused) {
  if (GetParam() == 1) GTEST_SKIP() << "one rank has no peers";
  const std::string name = unique_name();
  run_processes(GetParam(), [&](std::int32_t rank) {
    const auto bootstrap = local_bootstrap(name, rank, GetParam(), std::chrono::seconds(30));
    const CommError error =
        catch_comm_error([&] { make_nccl_group(rank, GetParam(), 0, bootstrap); });
    EXPECT_STREQ(error.what(),
                 "rank 0 and rank 1 have the same GPU; allowed: one rank for each GPU");
  });
}

}  // namespace
}  // namespace magi::testing
