// SPDX-License-Identifier: Apache-2.0
#include "rank_memory.hpp"

#include <algorithm>
#include <cstring>
#include <deque>

namespace magi::reliability {
namespace {

class HostMemory final : public RankMemory {
 public:
  void* take(std::vector<std::byte> bytes) override {
    bytes.resize(std::max<std::size_t>(bytes.size(), 1));  // no rows have an address too
    blocks_.push_back(std::move(bytes));
    return blocks_.back().data();
  }
  std::vector<std::byte> fetch_sync(const TensorView& tensor) override {
    std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.num_elements()) *
                                 dtype_bytes(tensor.dtype));
    if (!bytes.empty()) std::memcpy(bytes.data(), tensor.data, bytes.size());
    return bytes;
  }

 private:
  std::deque<std::vector<std::byte>> blocks_;
};

}  // namespace

std::unique_ptr<RankMemory> make_memory(std::int32_t device) {
  if (device == kCpuDevice) return std::make_unique<HostMemory>();
  return make_gpu_memory(device);
}

}  // namespace magi::reliability
