// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "comm/ranks.hpp"
#include "cuda/device.hpp"

// What only ranks as processes can show of nvlink. NOTE: they are forked, and CUDA does not outlive
// a fork, so that the test process never calls it.
namespace magi::testing {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Communicator> base_group(const std::string& name, std::int32_t rank) {
  return make_shm_group(rank, 2, local_bootstrap(name, rank, 2, std::chrono::seconds(30)));
}

TEST(DeviceNvlink, SameGpuTwiceIsRefusedAndANewGroupWorks) {
  if (!std::filesystem::exists("/dev/nvidia0")) GTEST_SKIP() << "no GPU here: device test not run";
  const bool has_two = std::filesystem::exists("/dev/nvidia1");
  const std::string name = unique_name();
  run_processes(2, [&](std::int32_t rank) {
    const CommError error = catch_comm_error([&] { make_nvlink_group(base_group(name, rank), 0); });
    EXPECT_THAT(error.what(), HasSubstr("rank 0 cannot join nvlink: rank 1 has the same GPU"));
    if (!has_two) return;
    const auto group = make_nvlink_group(base_group(name + "-again", rank), rank);
    EXPECT_EQ(group->allgather_sync({}).size(), 2u);
    group->check();
    group->close_sync();
  });
}

}  // namespace
}  // namespace magi::testing
