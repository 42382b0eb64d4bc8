// SPDX-License-Identifier: Apache-2.0
#include "cuda/stream_buffer.hpp"

#include <string>
#include <utility>

#include "cuda/check.hpp"
#include "cuda/pool.hpp"

namespace magi {

StreamBuffer::StreamBuffer(const DeviceAllocator& allocator, std::size_t size_bytes,
                           std::int32_t device, cudaStream_t stream)
    : allocator_(allocator.allocate ? &allocator : nullptr),
      size_bytes_(size_bytes),
      device_(device),
      stream_(stream) {
  if (size_bytes == 0) return;
  data_ = allocator_ != nullptr ? allocator.allocate(size_bytes, device, stream)
                                : pool_allocate(size_bytes, device, stream);
  if (data_ == nullptr) {
    throw CudaError("the allocator gave null for " + std::to_string(size_bytes) + " bytes",
                    cudaErrorMemoryAllocation);
  }
}

StreamBuffer::StreamBuffer(std::size_t size_bytes, std::int32_t device, cudaStream_t stream)
    : StreamBuffer(DeviceAllocator{}, size_bytes, device, stream) {}

StreamBuffer::~StreamBuffer() {
  if (data_ == nullptr) return;
  if (allocator_ != nullptr) {
    allocator_->release(data_, size_bytes_, device_, stream_);
  } else {
    pool_release(data_, stream_);
  }
}

StreamBuffer::StreamBuffer(StreamBuffer&& other) noexcept { *this = std::move(other); }

StreamBuffer& StreamBuffer::operator=(StreamBuffer&& other) noexcept {
  std::swap(allocator_, other.allocator_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(device_, other.device_);
  std::swap(stream_, other.stream_);
  std::swap(data_, other.data_);
  return *this;
}

}  // namespace magi
