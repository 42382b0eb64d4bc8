// SPDX-License-Identifier: Apache-2.0
#include "cuda/memory.hpp"

#include <utility>

#include "cuda/capture.hpp"
#include "cuda/stream.hpp"

namespace magi {

DeviceBuffer::DeviceBuffer(std::size_t size_bytes) : size_bytes_(size_bytes) {
  if (size_bytes == 0) return;
  const UncapturedScope scope;
  cuda_check(cudaMalloc(&data_, size_bytes), "cudaMalloc");
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr) return;
  const UncapturedScope scope;
  static_cast<void>(cudaFree(data_));
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

DeviceBuffer bytes_to_device_sync(const void* bytes, std::size_t size_bytes) {
  DeviceBuffer buffer(size_bytes);
  if (size_bytes == 0) return buffer;
  const UncapturedScope scope;
  const Stream stream;
  cuda_check(cudaMemcpyAsync(buffer.data(), bytes, size_bytes, cudaMemcpyDefault, stream.handle()),
             "cudaMemcpyAsync");
  stream.wait_sync();
  return buffer;
}

}  // namespace magi
