// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <string>

namespace magi {

/// The properties of a GPU that the kernels need.
struct DeviceInfo {
  std::int32_t major = 0;
  std::int32_t minor = 0;
  std::int32_t num_sms = 0;
  std::int32_t shared_bytes = 0;  ///< that a CTA may have

  bool is_hopper() const { return major == 9 && minor == 0; }
};

/// Number of GPUs the driver shows; 0 without a driver.
std::int32_t device_count();
/// Throws CudaError when there is no such device. Quick: fit for every call.
DeviceInfo device_info(std::int32_t device);
std::string device_name(std::int32_t device);
/// 32 hexadecimal digits, the same in every process.
std::string device_uuid(std::int32_t device);
/// The calling thread's current device.
std::int32_t current_device();

/// Makes `device` current for the calling thread until the end of the scope.
class DeviceScope {
 public:
  explicit DeviceScope(std::int32_t device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  std::int32_t earlier_;
  bool is_other_;
};

/// Runs `body` with the device current, where nothing may be thrown: a device that has failed says
/// so in every later call.
template <typename Body>
void on_device_or_drop(std::int32_t device, const Body& body) noexcept {
  try {
    const DeviceScope scope(device);
    body();
  } catch (const std::exception&) {
  }
}

}  // namespace magi
