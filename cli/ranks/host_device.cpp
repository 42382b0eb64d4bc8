// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstring>
#include <vector>

#include "base/random.hpp"
#include "ranks/rank_device.hpp"
#include "runtime/elements.hpp"

namespace magi::cli {
namespace {

class HostDevice final : public RankDevice {
 public:
  explicit HostDevice(DType type) : type_(type) {}

  std::int32_t ordinal() const override { return kCpuDevice; }
  std::string name() const override { return "CPU"; }
  void* stream() const override { return nullptr; }
  DType type() const override { return type_; }
  const DeviceAllocator& allocator() const override { return allocator_; }

  Array make(DType type, std::initializer_list<std::int64_t> shape) override {
    TensorView view = contiguous_view(nullptr, type, shape);
    const auto size_bytes = static_cast<std::size_t>(view.num_elements()) * dtype_bytes(type);
    const auto bytes = std::make_shared<std::vector<std::byte>>(size_bytes);
    view.data = bytes->data();
    return {view, bytes};
  }
  Array make_random(std::initializer_list<std::int64_t> shape, std::uint64_t seed) override {
    constexpr std::int32_t kSteps = 1 << 20;
    const Array drawn = make(DType::Float32, shape);
    RandomStream random(seed);
    auto* values = static_cast<float*>(drawn.view.data);
    for (std::int64_t i = 0; i < drawn.view.num_elements(); ++i) {
      std::int64_t sum = 0;
      for (int part = 0; part < 3; ++part) sum += random.between(-kSteps, kSteps);
      values[i] = static_cast<float>(sum) / kSteps;
    }
    Array array = make(type_, shape);
    convert(drawn, array);
    return array;
  }
  void copy(const void* source, void* target, std::size_t size_bytes) override {
    if (size_bytes > 0) std::memcpy(target, source, size_bytes);
  }
  void clear(const TensorView& target) override { fill_elements(target, 0.0); }
  void convert(const TensorView& source, const TensorView& target) override {
    convert_elements(source, target);
  }
  void put_sync(const void* source, void* target, std::size_t size_bytes) override {
    copy(source, target, size_bytes);
  }
  void fetch_sync(const void* source, void* target, std::size_t size_bytes) override {
    copy(source, target, size_bytes);
  }
  void wait_sync() override {}

  double seconds_of_sync(const std::function<void()>& work) override {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  std::optional<std::int64_t> used_bytes() const override { return std::nullopt; }
  std::optional<std::int64_t> peak_bytes() const override { return std::nullopt; }
  void reset_peak() override {}
  std::optional<std::int64_t> outside_bytes_sync() const override { return std::nullopt; }

 private:
  DType type_;
  DeviceAllocator allocator_;
};

}  // namespace

std::unique_ptr<RankDevice> make_host_device(DType type) {
  return std::make_unique<HostDevice>(type);
}

}  // namespace magi::cli
