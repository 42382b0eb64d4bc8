// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "base/math.hpp"
#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "cuda/order_event.hpp"
#include "cuda/pool.hpp"
#include "cuda/stream_buffer.hpp"
#include "runtime/device_elements.hpp"
#include "runtime/step_memory.hpp"

namespace magi {
namespace {

constexpr std::size_t kAlignment = 256;

/// The memory of one call, in the order of its stream: one piece as large as the largest call
/// before, and more where that is not enough.
class CallBlocks {
 public:
  CallBlocks(const DeviceAllocator& allocator, std::int32_t device)
      : allocator_(allocator), device_(device) {}

  void begin(cudaStream_t stream) {
    stream_ = stream;
    used_bytes_ = lent_bytes_ = 0;
  }
  void end() {
    largest_bytes_ = std::max(largest_bytes_, lent_bytes_);
    blocks_.clear();
  }
  void* lend(std::size_t size_bytes) {
    // Never null, so that a tensor of no rows still counts as given.
    const std::size_t size = align_up(std::max<std::size_t>(size_bytes, 1), kAlignment);
    if (blocks_.empty() || used_bytes_ + size > blocks_.back().size_bytes()) {
      const std::size_t expected = blocks_.empty() ? largest_bytes_ : 0;
      blocks_.emplace_back(allocator_, std::max(size, expected), device_, stream_);
      used_bytes_ = 0;
    }
    void* data = static_cast<std::byte*>(blocks_.back().data()) + used_bytes_;
    used_bytes_ += size;
    lent_bytes_ += size;
    return data;
  }
  std::size_t largest_bytes() const { return largest_bytes_; }
  cudaStream_t stream() const { return stream_; }

 private:
  const DeviceAllocator& allocator_;
  std::int32_t device_;
  cudaStream_t stream_ = nullptr;
  std::vector<StreamBuffer> blocks_;
  std::size_t used_bytes_ = 0;  ///< of the last block
  std::size_t lent_bytes_ = 0;  ///< since begin
  std::size_t largest_bytes_ = 0;
};

void check_setup(const StepMemorySetup& setup) {
  const std::int32_t num_devices = device_count();
  if (setup.device < 0 || setup.device >= num_devices) {
    throw invalid("q.device", setup.device,
                  "-1 (host memory) or one of the " + std::to_string(num_devices) + " GPUs here");
  }
  const std::int32_t sms = setup.options.exchange_sms;
  const std::int32_t num_sms = device_info(setup.device).num_sms;
  if (sms < 0 || sms >= num_sms) {
    throw invalid("options.exchange_sms", sms, "0 to " + std::to_string(num_sms - 1));
  }
  if (setup.communicator.num_ranks() == 1 || setup.communicator.has_device_exchange()) return;
  throw invalid("communicator", std::string("a ") + setup.communicator.backend() + " group",
                "for tensors on a GPU a group that moves device memory");
}

class DeviceMemory final : public StepMemory {
 public:
  explicit DeviceMemory(const StepMemorySetup& setup)
      : device_(setup.device),
        num_ranks_(setup.communicator.num_ranks()),
        attention_(find_backend(setup.options.backend, setup.device)),
        lease_(setup.options.allocator.allocate ? PoolLease() : PoolLease(setup.device)),
        blocks_(setup.options.allocator, setup.device),
        lender_{.allocate = [this](std::size_t size_bytes, std::int32_t,
                                   void*) { return blocks_.lend(size_bytes); },
                .release = [](void*, std::size_t, std::int32_t, void*) {}},
        rows_(comm::make_row_exchanger(setup.communicator, setup.device, lender_)) {}

  void check_call(void* stream) const override {
    if (num_ranks_ == 1 || graph_of_capture(static_cast<cudaStream_t>(stream)) == nullptr) return;
    throw invalid("stream", "being captured", "one that is not, for attention over ranks");
  }

  void begin(void* stream) override {
    finished_.await(static_cast<cudaStream_t>(stream));
    blocks_.begin(static_cast<cudaStream_t>(stream));
  }

  void end() noexcept override {
    try {
      blocks_.end();
      finished_.record(blocks_.stream());
    } catch (const CudaError&) {
      // The device has failed: every later call says so.
      static_cast<void>(cudaGetLastError());
    }
  }

  TensorView lend(DType dtype, std::initializer_list<std::int64_t> shape) override {
    TensorView tensor = contiguous_view(nullptr, dtype, shape);
    tensor.device = device_;
    tensor.data =
        blocks_.lend(static_cast<std::size_t>(tensor.num_elements()) * dtype_bytes(dtype));
    return tensor;
  }

  void convert(const TensorView& source, const TensorView& target) override {
    convert_device_rows(source, target, blocks_.stream());
  }

  void fill(const TensorView& target, double value) override {
    fill_device_values(target, static_cast<float>(value), blocks_.stream());
  }

  std::int32_t device() const override { return device_; }
  comm::RowExchanger& rows() override { return *rows_; }
  const AttentionBackend& attention() const override { return *attention_; }
  std::size_t size_bytes() const override { return blocks_.largest_bytes(); }

 private:
  std::int32_t device_;
  std::int32_t num_ranks_;
  std::shared_ptr<const AttentionBackend> attention_;
  PoolLease lease_;  ///< keeps what calls gave back for the next ones
  CallBlocks blocks_;
  DeviceAllocator lender_;  ///< gives the exchanger memory of the call
  std::unique_ptr<comm::RowExchanger> rows_;
  OrderEvent finished_;  ///< of the caller's stream: end of the last call
};

}  // namespace

std::unique_ptr<StepMemory> make_device_memory(const StepMemorySetup& setup) {
  check_setup(setup);
  const DeviceScope scope(setup.device);
  return std::make_unique<DeviceMemory>(setup);
}

}  // namespace magi
