// SPDX-License-Identifier: Apache-2.0
#include "cuda/device.hpp"

#include <map>
#include <mutex>

#include "cuda/check.hpp"

namespace magi {

std::int32_t device_count() {
  int count = 0;
  // No driver is an answer, not a failure.
  return cuda_forget(cudaGetDeviceCount(&count)) == cudaSuccess ? count : 0;
}

namespace {

DeviceInfo read_device_info(std::int32_t device) {
  const auto attribute = [device](cudaDeviceAttr name) {
    int value = 0;
    cuda_check(cudaDeviceGetAttribute(&value, name, device), "cudaDeviceGetAttribute");
    return value;
  };
  return {.major = attribute(cudaDevAttrComputeCapabilityMajor),
          .minor = attribute(cudaDevAttrComputeCapabilityMinor),
          .num_sms = attribute(cudaDevAttrMultiProcessorCount),
          .shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)};
}

}  // namespace

DeviceInfo device_info(std::int32_t device) {
  // Each launch asks. A process asks of the GPUs it uses alone: others may be unfit.
  static std::mutex mutex;
  static std::map<std::int32_t, DeviceInfo> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(device);
  if (found != known.end()) return found->second;
  return known.emplace(device, read_device_info(device)).first->second;
}

std::string device_name(std::int32_t device) {
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return properties.name;
}

std::string device_uuid(std::int32_t device) {
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const char byte : properties.uuid.bytes) {
    const auto value = static_cast<unsigned char>(byte);
    text += kDigits[value >> 4];
    text += kDigits[value & 15];
  }
  return text;
}

std::int32_t current_device() {
  int device = 0;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

DeviceScope::DeviceScope(std::int32_t device)
    : earlier_(current_device()), is_other_(device != earlier_) {
  if (is_other_) cuda_check(cudaSetDevice(device), "cudaSetDevice");
}

DeviceScope::~DeviceScope() {
  if (is_other_) cuda_forget(cudaSetDevice(earlier_));
}

}  // namespace magi
