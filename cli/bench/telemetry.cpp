// SPDX-License-Identifier: Apache-2.0
#include "bench/telemetry.hpp"

#include <cuda_runtime_api.h>

#include <array>
#include <utility>

#include "cuda/check.hpp"

namespace magi::cli {
namespace {

// Values of NVML's enumerations.
constexpr int kSmClock = 1;
constexpr unsigned kInstantPower = 186;

/// NVML's record of one field; the value of this one is an unsigned int.
struct FieldValue {
  unsigned field = 0;
  unsigned scope = 0;
  long long timestamp = 0;
  long long latency = 0;
  int value_type = 0;
  int status = 0;
  union {
    double real;
    unsigned milliwatts;
  };
};

}  // namespace

struct Telemetry::Functions {
  int (*start)() = nullptr;
  int (*stop)() = nullptr;
  int (*device_by_bus)(const char* bus, void** device) = nullptr;
  int (*clock)(void* device, int kind, unsigned* mhz) = nullptr;
  int (*fields)(void* device, int count, FieldValue* values) = nullptr;
};

std::unique_ptr<Telemetry> Telemetry::open(std::int32_t device) {
  auto library = std::make_unique<DynamicLibrary>(
      std::vector<std::string>{"libnvidia-ml.so.1", "libnvidia-ml.so"});
  if (!library->is_open()) return nullptr;
  std::unique_ptr<Telemetry> telemetry(new Telemetry(std::move(library)));
  if (!telemetry->find_device(device)) return nullptr;
  return telemetry;
}

Telemetry::Telemetry(std::unique_ptr<DynamicLibrary> library)
    : library_(std::move(library)), functions_(std::make_unique<Functions>()) {
  library_->find("nvmlInit_v2", functions_->start);
  library_->find("nvmlShutdown", functions_->stop);
  library_->find("nvmlDeviceGetHandleByPciBusId_v2", functions_->device_by_bus);
  library_->find("nvmlDeviceGetClockInfo", functions_->clock);
  library_->find("nvmlDeviceGetFieldValues", functions_->fields);
}

Telemetry::~Telemetry() {
  if (is_started_) functions_->stop();
}

bool Telemetry::find_device(std::int32_t device) {
  if (functions_->start() != 0) return false;
  is_started_ = true;
  std::array<char, 32> bus{};
  cuda_check(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device),
             "cudaDeviceGetPCIBusId");
  return functions_->device_by_bus(bus.data(), &device_) == 0;
}

TelemetrySample Telemetry::sample() const {
  TelemetrySample sample;
  unsigned value = 0;
  if (functions_->clock(device_, kSmClock, &value) == 0) {
    sample.sm_clock_mhz = static_cast<int>(value);
  }
  FieldValue power{.field = kInstantPower};  // the usual figure is the mean of a second
  if (functions_->fields(device_, 1, &power) == 0 && power.status == 0) {
    sample.power_watts = 1e-3 * power.milliwatts;
  }
  return sample;
}

}  // namespace magi::cli
