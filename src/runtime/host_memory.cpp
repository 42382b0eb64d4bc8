// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "runtime/buffer.hpp"
#include "runtime/elements.hpp"
#include "runtime/step_memory.hpp"

namespace magi {
namespace {

/// Buffers are kept from call to call: the n-th tensor lent is always the same buffer.
class HostMemory final : public StepMemory {
 public:
  explicit HostMemory(const StepMemorySetup& setup)
      : attention_(find_backend(setup.options.backend, kCpuDevice)),
        rows_(comm::make_row_exchanger(setup.communicator, kCpuDevice, setup.options.allocator)) {}

  void check_call(void* /*stream*/) const override {}
  void begin(void* /*stream*/) override { num_lent_ = 0; }
  void end() noexcept override {}

  TensorView lend(DType dtype, std::initializer_list<std::int64_t> shape) override {
    if (num_lent_ == buffers_.size()) buffers_.emplace_back();
    return buffers_[num_lent_++].view(dtype, shape);
  }

  void convert(const TensorView& source, const TensorView& target) override {
    convert_elements(source, target);
  }
  void fill(const TensorView& target, double value) override { fill_elements(target, value); }

  std::int32_t device() const override { return kCpuDevice; }
  comm::RowExchanger& rows() override { return *rows_; }
  const AttentionBackend& attention() const override { return *attention_; }

  std::size_t size_bytes() const override {
    std::size_t total = 0;
    for (const Buffer& buffer : buffers_) total += buffer.size_bytes();
    return total;
  }

 private:
  std::shared_ptr<const AttentionBackend> attention_;
  std::unique_ptr<comm::RowExchanger> rows_;
  std::vector<Buffer> buffers_;
  std::size_t num_lent_ = 0;
};

}  // namespace

std::unique_ptr<StepMemory> make_host_memory(const StepMemorySetup& setup) {
  return std::make_unique<HostMemory>(setup);
}

}  // namespace magi
