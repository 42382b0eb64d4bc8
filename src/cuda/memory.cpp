// SPDX-License-Identifier: Apache-2.0
#include "cuda/memory.hpp"

#include <utility>

namespace magi {

DeviceBuffer::DeviceBuffer(std::size_t size_bytes) : size_bytes_(size_bytes) {
  if (size_bytes > 0) cuda_check(cudaMalloc(&data_, size_bytes), "cudaMalloc");
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) static_cast<void>(cudaFree(data_));
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

void DeviceBuffer::fill(int byte, cudaStream_t stream) const {
  if (size_bytes_ == 0) return;
  cuda_check(cudaMemsetAsync(data_, byte, size_bytes_, stream), "cudaMemsetAsync");
}

}  // namespace magi
