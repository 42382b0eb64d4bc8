// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "bench/dynamic_library.hpp"

namespace magi::cli {

struct TelemetrySample {
  std::optional<int> sm_clock_mhz;
  std::optional<double> power_watts;
};

/// Clock and power of a GPU, through NVML opened at run time.
class Telemetry {
 public:
  /// Returns the device of a CUDA ordinal; null where there is no NVML or it does not know the
  /// device.
  static std::unique_ptr<Telemetry> open(std::int32_t device);
  ~Telemetry();
  Telemetry(const Telemetry&) = delete;
  Telemetry& operator=(const Telemetry&) = delete;

  TelemetrySample sample() const;

 private:
  struct Functions;
  explicit Telemetry(std::unique_ptr<DynamicLibrary> library);
  bool find_device(std::int32_t device);

  std::unique_ptr<DynamicLibrary> library_;
  std::unique_ptr<Functions> functions_;
  bool is_started_ = false;
  void* device_ = nullptr;
};

}  // namespace magi::cli
