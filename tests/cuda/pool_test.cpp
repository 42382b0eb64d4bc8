// SPDX-License-Identifier: Apache-2.0
#include "cuda/pool.hpp"

#include "cuda/check.hpp"
#include "cuda/stream_buffer.hpp"
#include "support/gpu/gpu_test.hpp"

// What the pool holds, seen as memory that the device has left.
namespace magi::test {
namespace {

constexpr std::size_t kBytes = std::size_t{1} << 30;
constexpr std::size_t kSlack = kBytes / 4;  ///< what the driver keeps for itself

class PoolTest : public GpuTest {};

std::size_t free_bytes_sync() {
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  std::size_t free = 0, total = 0;
  cuda_check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
}

void use_memory() { const StreamBuffer buffer(kBytes, 0, nullptr); }

TEST_F(PoolTest, KeepsMemoryWhileALeaseLivesAndReturnsItWithTheLastOne) {
  use_memory();  // what the driver takes once
  const std::size_t before = free_bytes_sync();
  {
    const PoolLease outer(0);
    {
      const PoolLease inner(0);
      use_memory();
    }
    EXPECT_LT(free_bytes_sync(), before - kBytes + kSlack);
    use_memory();
    EXPECT_LT(free_bytes_sync(), before - kBytes + kSlack);
  }
  EXPECT_GT(free_bytes_sync(), before - kSlack);
}

TEST_F(PoolTest, MemoryThatIsInUseWhenTheLastLeaseEndsIsReturnedLater) {
  use_memory();
  const std::size_t before = free_bytes_sync();
  {
    StreamBuffer buffer;
    {
      const PoolLease lease(0);
      buffer = StreamBuffer(kBytes, 0, nullptr);
    }
    EXPECT_LT(free_bytes_sync(), before - kBytes + kSlack);
  }
  free_bytes_sync();
  EXPECT_GT(free_bytes_sync(), before - kSlack);
}

TEST_F(PoolTest, LeasesMove) {
  PoolLease first(0);
  PoolLease second = std::move(first);
  first = std::move(second);
}

}  // namespace
}  // namespace magi::test
