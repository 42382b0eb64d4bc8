// SPDX-License-Identifier: Apache-2.0
#include "base/check.hpp"
#include "comm/engine/ring_group.hpp"
#include "comm/nccl/comm_device.hpp"
#include "comm/rows/row_memory.hpp"

// The build without CUDA.
namespace magi::comm {
std::vector<std::unique_ptr<DeviceTransport>> make_loopback_transports(
    std::int32_t /*num_ranks*/, const CommOptions& /*options*/) {
  return {};
}

std::shared_ptr<RowMemory> make_device_memory(std::int32_t device,
                                              const DeviceAllocator& /*allocator*/) {
  throw invalid("device", device, "-1 (host memory), as this build holds no GPU kernels");
}

std::shared_ptr<const CommDevice> make_comm_device(std::int32_t device) {
  throw invalid("device", device, "none, as this build has no CUDA");
}

}  // namespace magi::comm

namespace magi {
std::unique_ptr<Communicator> make_nvlink_group(std::shared_ptr<Communicator> base,
                                                std::int32_t device,
                                                const CommOptions& /*options*/) {
  base.reset();
  throw invalid("device", device, "none, as this build holds no GPU kernels");
}

}  // namespace magi
