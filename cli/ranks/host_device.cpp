// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <vector>

#include "ranks/rank_device.hpp"

namespace magi::cli {
namespace {

class HostDevice final : public RankDevice {
 public:
  explicit HostDevice(DType type) : type_(type) {}

  std::string name() const override { return "CPU"; }
  void* stream() const override { return nullptr; }
  DType type() const override { return type_; }

  Array make(DType type, std::initializer_list<std::int64_t> shape) override {
    TensorView view = contiguous_view(nullptr, type, shape);
    const auto size_bytes = static_cast<std::size_t>(view.num_elements()) * dtype_bytes(type);
    const auto bytes = std::make_shared<std::vector<std::byte>>(size_bytes);
    view.data = bytes->data();
    return {view, bytes};
  }
  void put_sync(const void* source, void* target, std::size_t size_bytes) override {
    if (size_bytes > 0) std::memcpy(target, source, size_bytes);
  }
  void fetch_sync(const void* source, void* target, std::size_t size_bytes) override {
    put_sync(source, target, size_bytes);
  }
  void wait_sync() override {}

 private:
  DType type_;
};

}  // namespace

std::unique_ptr<RankDevice> make_host_device(DType type) {
  return std::make_unique<HostDevice>(type);
}

}  // namespace magi::cli
