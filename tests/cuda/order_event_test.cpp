// SPDX-License-Identifier: Apache-2.0
#include "cuda/order_event.hpp"

#include <gtest/gtest.h>

#include <cstdint>

#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "support/gpu/gpu_test.hpp"

namespace magi::test {
namespace {

using OrderOfCalls = GpuTest;

TEST_F(OrderOfCalls, ACallOnAnotherStreamComesBehindTheOneBefore) {
  constexpr std::size_t kBytes = std::size_t{256} << 20;  // takes a while to fill
  const DeviceBuffer data(kBytes), seen(sizeof(std::uint32_t));
  const Stream one, other;
  CallOrder order;
  for (const int value : {1, 2, 3}) {
    order.begin(one.handle());
    for (int i = 0; i < 4; ++i) data.fill(i, one.handle());
    data.fill(value, one.handle());
    order.end(one.handle());
    order.begin(other.handle());
    cuda_check(cudaMemcpyAsync(seen.data(), static_cast<std::byte*>(data.data()) + kBytes - 4, 4,
                               cudaMemcpyDeviceToDevice, other.handle()),
               "cudaMemcpyAsync");
    order.end(other.handle());
    other.wait_sync();
    EXPECT_EQ(to_host_sync<std::uint8_t>(seen.data(), 1)[0], value);
  }
}

TEST_F(OrderOfCalls, NothingIsAwaitedBeforeTheFirstCall) {
  const Stream stream;
  const CallOrder order;
  order.begin(stream.handle());
  stream.wait_sync();
}

}  // namespace
}  // namespace magi::test
