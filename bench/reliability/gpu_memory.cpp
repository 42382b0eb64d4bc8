// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <deque>

#include "cuda/device.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "rank_memory.hpp"

namespace magi::reliability {
namespace {

class GpuMemory final : public RankMemory {
 public:
  explicit GpuMemory(std::int32_t device) : scope_(device) {}
  void* take(std::vector<std::byte> bytes) override {
    bytes.resize(std::max<std::size_t>(bytes.size(), 1));  // no rows have an address too
    buffers_.push_back(bytes_to_device_sync(bytes.data(), bytes.size()));
    return buffers_.back().data();
  }
  std::vector<std::byte> fetch_sync(const TensorView& tensor) override {
    stream_.wait_sync();
    return to_host_sync<std::byte>(
        tensor.data, static_cast<std::size_t>(tensor.num_elements()) * dtype_bytes(tensor.dtype));
  }
  void* stream() override { return stream_.handle(); }

 private:
  DeviceScope scope_;
  Stream stream_;
  std::deque<DeviceBuffer> buffers_;
};

}  // namespace

std::unique_ptr<RankMemory> make_gpu_memory(std::int32_t device) {
  return std::make_unique<GpuMemory>(device);
}

std::size_t free_gpu_bytes(std::int32_t device) {
  const DeviceScope scope(device);
  std::size_t free = 0, total = 0;
  cuda_check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
}

}  // namespace magi::reliability
