// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <new>

#include "common/random_values.hpp"
#include "cuda/device.hpp"
#include "cuda/stream.hpp"
#include "cuda/timing.hpp"
#include "ranks/rank_device.hpp"
#include "runtime/device_elements.hpp"

namespace magi::cli {
namespace {

/// Stream-ordered memory of the driver's own pool, counted. The pool keeps what is given back.
class CountedPool {
 public:
  explicit CountedPool(std::int32_t device) {
    cuda_check(cudaDeviceGetDefaultMemPool(&pool_, device), "cudaDeviceGetDefaultMemPool");
    std::uint64_t all = ~std::uint64_t{0};
    cuda_check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &all),
               "cudaMemPoolSetAttribute");
  }
  /// Null where none is left.
  void* take(std::size_t size_bytes, cudaStream_t stream) {
    if (size_bytes == 0) return nullptr;
    void* data = nullptr;
    const cudaError_t result = cuda_forget(cudaMallocAsync(&data, size_bytes, stream));
    if (result == cudaErrorMemoryAllocation) return nullptr;
    cuda_check(result, "cudaMallocAsync");
    used_ += static_cast<std::int64_t>(size_bytes);
    peak_ = std::max(peak_, used_);
    return data;
  }
  void give_back(void* data, std::size_t size_bytes, cudaStream_t stream) noexcept {
    if (data == nullptr) return;
    cuda_forget(cudaFreeAsync(data, stream));
    used_ -= static_cast<std::int64_t>(size_bytes);
  }
  std::int64_t used() const { return used_; }
  std::int64_t peak() const { return peak_; }
  void reset_peak() { peak_ = used_; }
  /// What the pool holds of the driver.
  std::int64_t held() const {
    std::uint64_t bytes = 0;
    cuda_check(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &bytes),
               "cudaMemPoolGetAttribute");
    return static_cast<std::int64_t>(bytes);
  }

 private:
  cudaMemPool_t pool_ = nullptr;
  std::int64_t used_ = 0, peak_ = 0;
};

class GpuDevice final : public RankDevice {
 public:
  explicit GpuDevice(std::int32_t ordinal)
      : ordinal_(ordinal),
        scope_(ordinal),
        stream_(std::make_shared<Stream>()),
        pool_(std::make_shared<CountedPool>(ordinal)) {
    const auto queue = [](void* stream) { return static_cast<cudaStream_t>(stream); };
    allocator_.allocate = [pool = pool_, queue](std::size_t size_bytes, std::int32_t,
                                                void* stream) {
      return pool->take(size_bytes, queue(stream));
    };
    allocator_.release = [pool = pool_, queue](void* data, std::size_t size_bytes, std::int32_t,
                                               void* stream) {
      pool->give_back(data, size_bytes, queue(stream));
    };
  }

  std::int32_t ordinal() const override { return ordinal_; }
  std::string name() const override { return device_name(ordinal_); }
  void* stream() const override { return stream_->handle(); }
  DType type() const override { return DType::BFloat16; }
  const DeviceAllocator& allocator() const override { return allocator_; }

  Array make(DType type, std::initializer_list<std::int64_t> shape) override {
    TensorView view = contiguous_view(nullptr, type, shape);
    view.device = ordinal_;
    const auto size_bytes = static_cast<std::size_t>(view.num_elements()) * dtype_bytes(type);
    view.data = pool_->take(size_bytes, stream_->handle());
    if (view.data == nullptr && size_bytes > 0) throw std::bad_alloc();
    return {view, {view.data, [pool = pool_, stream = stream_, size_bytes](void* data) {
                     pool->give_back(data, size_bytes, stream->handle());
                   }}};
  }
  Array make_random(std::initializer_list<std::int64_t> shape, std::uint64_t seed) override {
    TensorView view = contiguous_view(nullptr, DType::BFloat16, shape);
    view.device = ordinal_;
    const auto buffer = std::make_shared<DeviceBuffer>(random_bfloat16(view.num_elements(), seed));
    view.data = buffer->data();
    return {view, buffer};
  }
  void copy(const void* source, void* target, std::size_t size_bytes) override {
    cuda_check(
        cudaMemcpyAsync(target, source, size_bytes, cudaMemcpyDeviceToDevice, stream_->handle()),
        "cudaMemcpyAsync");
  }
  void clear(const TensorView& target) override { clear_device_values(target, stream_->handle()); }
  void convert(const TensorView& source, const TensorView& target) override {
    convert_device_rows(source, target, stream_->handle());
  }
  void put_sync(const void* source, void* target, std::size_t size_bytes) override {
    cuda_check(
        cudaMemcpyAsync(target, source, size_bytes, cudaMemcpyHostToDevice, stream_->handle()),
        "cudaMemcpyAsync");
    wait_sync();
  }
  void fetch_sync(const void* source, void* target, std::size_t size_bytes) override {
    cuda_check(
        cudaMemcpyAsync(target, source, size_bytes, cudaMemcpyDeviceToHost, stream_->handle()),
        "cudaMemcpyAsync");
    wait_sync();
  }
  void wait_sync() override { stream_->wait_sync(); }

  double seconds_of_sync(const std::function<void()>& work) override {
    const Event begin;
    const Event end;
    begin.record(stream_->handle());
    work();
    end.record(stream_->handle());
    return end.seconds_since_sync(begin);
  }

  std::optional<std::int64_t> used_bytes() const override { return pool_->used(); }
  std::optional<std::int64_t> peak_bytes() const override { return pool_->peak(); }
  void reset_peak() override { pool_->reset_peak(); }
  std::optional<std::int64_t> outside_bytes_sync() const override {
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    std::size_t free = 0, total = 0;
    cuda_check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return static_cast<std::int64_t>(total - free) - pool_->held();
  }

 private:
  std::int32_t ordinal_;
  DeviceScope scope_;
  std::shared_ptr<Stream> stream_;
  std::shared_ptr<CountedPool> pool_;
  DeviceAllocator allocator_;
};

}  // namespace

std::unique_ptr<RankDevice> make_gpu_device(std::int32_t ordinal) {
  return std::make_unique<GpuDevice>(ordinal);
}

}  // namespace magi::cli
