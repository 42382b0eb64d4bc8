// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>

#include "cuda/ptx/wait_probe.hpp"
#include "support/gpu/gpu_test.hpp"

// Waits of device code that last longer than MAGI_WAIT_LIMIT_MS. The tests run this program again
// with --wait=NAME, so that the trap ends another process, and read what that one prints.
namespace magi::test {
namespace {

constexpr const char* kWait = "--wait=";

/// Runs one wait in this process and prints the launch's error.
int run_wait(const std::string& name) {
  cudaError_t error = cudaErrorInvalidValue;
  if (name == "barrier") error = probe::wait_for_barrier_sync();
  if (name == "semaphore") error = probe::wait_for_semaphore_sync(2);
  if (name == "reached") error = probe::wait_for_semaphore_sync(3);
  std::printf("launch: %s\n", cudaGetErrorName(error));
  std::fflush(stdout);
  // Destructors of the library's static objects would meet a device that has failed.
  std::_Exit(0);
}

/// What a process that runs one wait prints.
std::string output_of(const std::string& name) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command = "'" + program + "' " + kWait + name + " 2>&1";
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "no process";
  std::string output;
  char part[256];
  while (std::fgets(part, sizeof(part), pipe) != nullptr) output += part;
  pclose(pipe);
  return output;
}

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

using WaitTest = GpuTest;

TEST_F(WaitTest, SemaphoreThatNobodySignalsIsReported) {
  const std::string output = output_of("semaphore");
  EXPECT_TRUE(contains(output, "magi: waited 200 ms for a semaphore at ")) << output;
  EXPECT_TRUE(contains(output, "wait_probe.cu:")) << output;
  EXPECT_TRUE(contains(output, "block 0, warp 0: expected 3, saw 0x2")) << output;
  EXPECT_TRUE(contains(output, "launch: cudaErrorLaunchFailure")) << output;
}

TEST_F(WaitTest, BarrierThatNobodyArrivesAtIsReported) {
  const std::string output = output_of("barrier");
  EXPECT_TRUE(contains(output, "magi: waited 200 ms for a barrier phase at ")) << output;
  EXPECT_TRUE(contains(output, "block 0, warp 1: expected 0")) << output;
  EXPECT_TRUE(contains(output, "launch: cudaErrorLaunchFailure")) << output;
}

TEST_F(WaitTest, WaitThatEndsIsNotReported) {
  EXPECT_EQ(output_of("reached"), "launch: cudaSuccess\n");
}

}  // namespace
}  // namespace magi::test

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const std::size_t length = std::strlen(magi::test::kWait);
  if (argc == 2 && std::strncmp(argv[1], magi::test::kWait, length) == 0) {
    return magi::test::run_wait(argv[1] + length);
  }
  return RUN_ALL_TESTS();
}
