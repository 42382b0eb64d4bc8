// SPDX-License-Identifier: Apache-2.0
#include "base/check.hpp"
#include "comm/device_transport.hpp"
#include "comm/packed_exchanger.hpp"

// The build without CUDA.
namespace magi::comm {
namespace {

InvalidArgument no_device(std::int32_t device) {
  return invalid("device", device, "-1 (host memory), as this build holds no GPU kernels");
}

}  // namespace

std::vector<std::unique_ptr<DeviceTransport>> make_loopback_transports(
    std::int32_t /*num_ranks*/, const CommOptions& /*options*/) {
  return {};
}

std::shared_ptr<RowMemory> make_device_memory(std::int32_t device,
                                              const DeviceAllocator& /*allocator*/) {
  throw no_device(device);
}

void max_rows_on_device(const TensorView& /*rows*/, const TensorView& values, void* /*stream*/) {
  throw no_device(values.device);
}

}  // namespace magi::comm
