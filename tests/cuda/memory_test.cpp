// SPDX-License-Identifier: Apache-2.0
#include "cuda/memory.hpp"

#include <numeric>
#include <thread>

#include "cuda/check.hpp"
#include "cuda/pool.hpp"
#include "magi/error.hpp"
#include "support/gpu/gpu_test.hpp"

namespace magi::test {
namespace {

using MemoryTest = GpuTest;

TEST_F(MemoryTest, ListsOfOneBlockAreWholeAndAligned) {
  std::vector<std::int32_t> numbers(1001);
  std::iota(numbers.begin(), numbers.end(), 7);
  const std::vector<double> reals{1.5, -2.5};
  const std::vector<char> none;
  std::vector<DeviceList> lists;
  for (int round = 0; round < 3; ++round) {
    lists = lists_to_device_sync({std::as_bytes(std::span(numbers)), std::as_bytes(std::span(none)),
                                  std::as_bytes(std::span(reals))});
  }
  ASSERT_EQ(lists.size(), 3u);
  EXPECT_EQ(to_host_sync<std::int32_t>(lists[0].data(), numbers.size()), numbers);
  EXPECT_EQ(lists[1].data(), nullptr);
  const DeviceList kept = lists[2];
  lists.clear();
  EXPECT_EQ(to_host_sync<double>(kept.data(), 2), reals);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(kept.data()) % 256, 0u);
  EXPECT_EQ(kept.size_bytes(), 16u);
}

TEST_F(MemoryTest, ThreadsCopyAtTheSameTime) {
  std::vector<std::jthread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([t] {
      const std::vector<int> values(5000, t);
      for (int round = 0; round < 50; ++round) {
        const DeviceBuffer buffer = to_device_sync<int>(values);
        EXPECT_EQ(to_host_sync<int>(buffer.data(), values.size()), values);
      }
    });
  }
}

/// Whoever catches the error and frees memory goes on as if nothing had been.
TEST_F(MemoryTest, TheLaunchAfterAFailedCallIsNotBlamed) {
  EXPECT_THROW(DeviceBuffer(std::size_t{1} << 60), CudaError);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_THROW(cuda_check(cudaSetDevice(1 << 20), "cudaSetDevice"), CudaError);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

/// A failure that is ignored is forgotten by the runtime, too.
TEST_F(MemoryTest, TheLaunchAfterAReleaseThatFailedIsNotBlamed) {
  {
    DeviceBuffer buffer(256);
    ASSERT_EQ(cudaFree(buffer.data()), cudaSuccess);  // the buffer's own release fails
  }
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  int on_host = 0;
  pool_release(&on_host, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

}  // namespace
}  // namespace magi::test
