// SPDX-License-Identifier: Apache-2.0
#include "base/check.hpp"
#include "runtime/device_attention.hpp"

// The build without CUDA.
namespace magi {

std::unique_ptr<DeviceAttention> make_device_attention(const DeviceSetup& setup) {
  throw invalid("q.device", setup.device, "-1 (host memory), as this build holds no GPU kernels");
}

}  // namespace magi
