// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

#include "base/check.hpp"
#include "base/math.hpp"
#include "cuda/check.hpp"
#include "cuda/pool.hpp"
#include "magi/runtime.hpp"

namespace magi {

/// Lays out what one call needs in one piece of memory.
class CallLayout {
 public:
  /// Where `size_bytes` bytes begin, aligned to 256.
  std::size_t add(std::int64_t size_bytes) {
    const std::size_t begin = total_bytes_;
    total_bytes_ = align_up(total_bytes_ + static_cast<std::size_t>(size_bytes), std::size_t{256});
    return begin;
  }
  std::size_t total_bytes() const { return total_bytes_; }

 private:
  std::size_t total_bytes_ = 0;
};

/// Device memory of one call, from the caller's allocator or the library's pool, in the order of
/// one stream.
class CallMemory {
 public:
  CallMemory(const DeviceAllocator& allocator, std::size_t size_bytes, std::int32_t device,
             cudaStream_t stream)
      : allocator_(allocator), size_bytes_(size_bytes), device_(device), stream_(stream) {
    if (size_bytes == 0) return;
    data_ = allocator.allocate ? allocator.allocate(size_bytes, device, stream)
                               : pool_allocate(size_bytes, device, stream);
    if (data_ == nullptr) {
      throw CudaError("the allocator gave null for " + std::to_string(size_bytes) + " bytes",
                      cudaErrorMemoryAllocation);
    }
  }
  ~CallMemory() {
    if (data_ == nullptr) return;
    if (allocator_.allocate) {
      allocator_.release(data_, size_bytes_, device_, stream_);
    } else {
      pool_release(data_, stream_);
    }
  }
  CallMemory(const CallMemory&) = delete;
  CallMemory& operator=(const CallMemory&) = delete;

  std::byte* at(std::size_t begin) const { return static_cast<std::byte*>(data_) + begin; }

 private:
  const DeviceAllocator& allocator_;
  std::size_t size_bytes_;
  std::int32_t device_;
  cudaStream_t stream_;
  void* data_ = nullptr;
};

}  // namespace magi
