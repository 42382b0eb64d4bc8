// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "magi/device_allocator.hpp"

namespace magi {

/// Owns device memory in the order of one stream: work enqueued on the stream while the buffer
/// lives may use it. The memory comes from the caller's allocator or, without one or where that is
/// empty, from the library's pool.
class StreamBuffer {
 public:
  StreamBuffer() = default;
  /// Throws CudaError where no memory is left. `allocator` must outlive the buffer; a size of 0
  /// takes nothing.
  StreamBuffer(const DeviceAllocator& allocator, std::size_t size_bytes, std::int32_t device,
               cudaStream_t stream);
  StreamBuffer(std::size_t size_bytes, std::int32_t device, cudaStream_t stream);
  ~StreamBuffer();
  StreamBuffer(StreamBuffer&& other) noexcept;
  StreamBuffer& operator=(StreamBuffer&& other) noexcept;
  StreamBuffer(const StreamBuffer&) = delete;
  StreamBuffer& operator=(const StreamBuffer&) = delete;

  void* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }

 private:
  const DeviceAllocator* allocator_ = nullptr;  ///< null: the pool
  std::size_t size_bytes_ = 0;
  std::int32_t device_ = 0;
  cudaStream_t stream_ = nullptr;
  void* data_ = nullptr;
};

/// Memory that one run has alone until it ends; none where there is nothing to compute.
struct RunMemory {
  unsigned* counters = nullptr;  ///< of a forward: StreamCounters::kWords words that are 0
  void* workspace = nullptr;
  StreamBuffer own = {};  ///< holds the workspace where the caller gives none
};

}  // namespace magi
