// SPDX-License-Identifier: Apache-2.0
#include "runtime/tensors/check_device.hpp"

#include <string>

#include "base/check.hpp"
#include "cuda/capture.hpp"
#include "cuda/device.hpp"

namespace magi {

void check_device(const char* name, std::int32_t device) {
  const std::int32_t num_devices = device_count();
  if (device >= 0 && device < num_devices) return;
  throw invalid(std::string(name) + ".device", device,
                "-1 (host memory) or one of the " + std::to_string(num_devices) + " GPUs here");
}

void check_exchange_sms(std::int32_t device, std::int32_t exchange_sms) {
  const std::int32_t num_sms = device_info(device).num_sms;
  if (exchange_sms >= 0 && exchange_sms < num_sms) return;
  throw invalid("options.exchange_sms", exchange_sms, "0 to " + std::to_string(num_sms - 1));
}

void check_not_captured(void* stream, const char* calls) {
  if (graph_of_capture(static_cast<cudaStream_t>(stream)) == nullptr) return;
  throw invalid("stream", "being captured", std::string("one that is not, for ") + calls);
}

}  // namespace magi
