// SPDX-License-Identifier: Apache-2.0
#include "comm/device_transport.hpp"

// The build without CUDA.
namespace magi::comm {

std::vector<std::unique_ptr<DeviceTransport>> make_loopback_transports(
    std::int32_t /*num_ranks*/, const CommOptions& /*options*/) {
  return {};
}

}  // namespace magi::comm
