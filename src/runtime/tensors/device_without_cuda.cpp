// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "base/check.hpp"
#include "runtime/tensors/check_device.hpp"
#include "runtime/tensors/device_elements.hpp"

// The build without CUDA.
namespace magi {

void check_device(const char* name, std::int32_t device) {
  throw invalid(std::string(name) + ".device", device,
                "-1 (host memory), as this build holds no GPU kernels");
}

// No other call gets as far as a GPU.
void check_exchange_sms(std::int32_t /*device*/, std::int32_t /*exchange_sms*/) {}
void check_not_captured(void* /*stream*/, const char* /*calls*/) {}
void copy_device_elements(const TensorView& /*source*/, const TensorView& /*target*/,
                          void* /*stream*/) {}
void fill_device_elements(const TensorView& /*target*/, std::uint64_t /*bits*/, void* /*stream*/) {}
void clear_device_elements(const TensorView& /*target*/, void* /*stream*/) {}

}  // namespace magi
