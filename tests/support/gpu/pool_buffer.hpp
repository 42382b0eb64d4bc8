// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "cuda/pool.hpp"

namespace magi::test {

/// Memory of device 0 in order of the default stream: unlike cudaMalloc and cudaFree, many threads
/// take and give it back at once without waiting for the device.
class PoolBuffer {
 public:
  PoolBuffer() = default;
  explicit PoolBuffer(std::size_t size_bytes)
      : data_(size_bytes == 0 ? nullptr : pool_allocate(size_bytes, 0, nullptr)) {}
  ~PoolBuffer() {
    if (data_ != nullptr) pool_release(data_, nullptr);
  }
  PoolBuffer(PoolBuffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  PoolBuffer& operator=(PoolBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  PoolBuffer(const PoolBuffer&) = delete;
  PoolBuffer& operator=(const PoolBuffer&) = delete;

  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

}  // namespace magi::test
