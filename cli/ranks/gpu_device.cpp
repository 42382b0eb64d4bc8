// SPDX-License-Identifier: Apache-2.0
#include "cuda/device.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "ranks/rank_device.hpp"

namespace magi::cli {
namespace {

class GpuDevice final : public RankDevice {
 public:
  explicit GpuDevice(std::int32_t ordinal) : ordinal_(ordinal), scope_(ordinal) {}

  std::string name() const override { return device_name(ordinal_); }
  void* stream() const override { return stream_.handle(); }
  DType type() const override { return DType::BFloat16; }

  Array make(DType type, std::initializer_list<std::int64_t> shape) override {
    TensorView view = contiguous_view(nullptr, type, shape);
    view.device = ordinal_;
    const auto buffer = std::make_shared<DeviceBuffer>(
        static_cast<std::size_t>(view.num_elements()) * dtype_bytes(type));
    view.data = buffer->data();
    return {view, buffer};
  }
  void put_sync(const void* source, void* target, std::size_t size_bytes) override {
    cuda_check(
        cudaMemcpyAsync(target, source, size_bytes, cudaMemcpyHostToDevice, stream_.handle()),
        "cudaMemcpyAsync");
    wait_sync();
  }
  void fetch_sync(const void* source, void* target, std::size_t size_bytes) override {
    cuda_check(
        cudaMemcpyAsync(target, source, size_bytes, cudaMemcpyDeviceToHost, stream_.handle()),
        "cudaMemcpyAsync");
    wait_sync();
  }
  void wait_sync() override { stream_.wait_sync(); }

 private:
  std::int32_t ordinal_;
  DeviceScope scope_;
  Stream stream_;
};

}  // namespace

std::unique_ptr<RankDevice> make_gpu_device(std::int32_t ordinal) {
  return std::make_unique<GpuDevice>(ordinal);
}

}  // namespace magi::cli
