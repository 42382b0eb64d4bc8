// SPDX-License-Identifier: Apache-2.0
#include "cuda/device.hpp"

#include "cuda/check.hpp"

namespace magi {

std::int32_t device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // no driver is an answer, not a sticky failure
    return 0;
  }
  return count;
}

DeviceInfo device_info(std::int32_t device) {
  DeviceInfo info;
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  info.name = properties.name;
  info.major = properties.major;
  info.minor = properties.minor;
  info.num_sms = properties.multiProcessorCount;
  info.l2_bytes = properties.l2CacheSize;
  return info;
}

std::int32_t current_device() {
  int device = 0;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

DeviceScope::DeviceScope(std::int32_t device) : earlier_(current_device()) {
  if (device != earlier_) cuda_check(cudaSetDevice(device), "cudaSetDevice");
}

DeviceScope::~DeviceScope() { static_cast<void>(cudaSetDevice(earlier_)); }

}  // namespace magi
