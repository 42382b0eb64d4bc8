// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "support/gpu/gpu_test.hpp"

namespace magi::test {
namespace {
int random_masks = 400;
int first_mask = 0;

/// Failures of the running test. Any thread asks; gtest reports results under its own lock.
std::atomic<int> num_failures = 0;

class FailureCount : public ::testing::EmptyTestEventListener {
 public:
  void OnTestStart(const ::testing::TestInfo& /*test*/) override { num_failures = 0; }
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (result.failed()) ++num_failures;
  }
};
}  // namespace
int num_random_masks() { return random_masks; }
int first_random_mask() { return first_mask; }

void for_each_random_mask(const std::function<void(int)>& check) {
  constexpr int kToldEvery = 1000;
  constexpr int kOften = 20;
  std::atomic<int> done = 0;
  // Inside these threads the reference runs on one: parallel regions within parallel ones do.
#pragma omp parallel for schedule(dynamic)
  for (int i = 0; i < random_masks; ++i) {
    if (num_failures >= kOften) continue;
    check(first_mask + i);
    const int count = ++done;
    if (count % kToldEvery != 0) continue;
    std::printf("%d random masks checked\n", count);
    std::fflush(stdout);
  }
  std::printf("%d random masks checked in all\n", done.load());
}

}  // namespace magi::test

int main(int argc, char** argv) {
  // Ranks that share the GPU wait for each other on it: no launch may wait for those waits.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  ::testing::InitGoogleTest(&argc, argv);
  // Owned by the library.
  ::testing::UnitTest::GetInstance()->listeners().Append(new magi::test::FailureCount);
  constexpr std::string_view kCount = "--random_masks=";
  constexpr std::string_view kFirst = "--first_mask=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with(kCount)) {
      magi::test::random_masks = std::atoi(argv[i] + kCount.size());
    } else if (argument.starts_with(kFirst)) {
      magi::test::first_mask = std::atoi(argv[i] + kFirst.size());
    } else {
      std::fprintf(stderr, "unknown argument: %s\n", argv[i]);
      return 2;
    }
  }
  if (magi::device_count() > 0) std::printf("GPU: %s\n", magi::device_name(0).c_str());
  return RUN_ALL_TESTS();
}
