// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include "base/check.hpp"
#include "comm/nccl/comm_device.hpp"
#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "cuda/order_event.hpp"

namespace magi::comm {
namespace {

class EventMark final : public StreamMark {
 public:
  explicit EventMark(cudaStream_t stream) { event_.record(stream); }
  bool is_reached() const override { return event_.is_reached(); }

 private:
  OrderEvent event_;
};

class CudaCommDevice final : public CommDevice {
 public:
  explicit CudaCommDevice(std::int32_t ordinal) : ordinal_(ordinal), id_(device_uuid(ordinal)) {}

  std::int32_t ordinal() const override { return ordinal_; }
  std::string id() const override { return id_; }

  void run(const std::function<void()>& calls) const override {
    const DeviceScope scope(ordinal_);
    calls();
  }

  void run_watch(const std::function<void()>& calls) const override {
    const DeviceScope scope(ordinal_);
    const UncapturedScope uncaptured;
    calls();
  }

  std::unique_ptr<StreamMark> mark(void* stream) const override {
    const auto queue = static_cast<cudaStream_t>(stream);
    if (graph_of_capture(queue) != nullptr) return nullptr;
    return std::make_unique<EventMark>(queue);
  }

 private:
  std::int32_t ordinal_;
  std::string id_;
};

}  // namespace

std::shared_ptr<const CommDevice> make_comm_device(std::int32_t device) {
  const std::int32_t num_devices = device_count();
  if (device < 0 || device >= num_devices) {
    throw invalid("device", device, "one of the " + std::to_string(num_devices) + " GPUs here");
  }
  return std::make_shared<CudaCommDevice>(device);
}

}  // namespace magi::comm
