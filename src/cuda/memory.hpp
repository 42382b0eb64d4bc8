// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cuda/check.hpp"

namespace magi {

/// Owns device memory of the device that was current when it was made.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::size_t size_bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  void* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }
  /// Fills every byte, in stream order.
  void fill(int byte, cudaStream_t stream) const;

 private:
  void* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

/// A device copy of host memory; blocks until it is there, but waits for no other stream and is
/// no part of a capture.
DeviceBuffer bytes_to_device_sync(const void* bytes, std::size_t size_bytes);

/// One of several lists that share a block of device memory, which it keeps.
class DeviceList {
 public:
  DeviceList() = default;
  DeviceList(std::shared_ptr<const DeviceBuffer> block, std::size_t offset, std::size_t size_bytes)
      : block_(std::move(block)), offset_(offset), size_bytes_(size_bytes) {}
  void* data() const {
    return size_bytes_ == 0 ? nullptr : static_cast<std::byte*>(block_->data()) + offset_;
  }
  std::size_t size_bytes() const { return size_bytes_; }

 private:
  std::shared_ptr<const DeviceBuffer> block_;
  std::size_t offset_ = 0;
  std::size_t size_bytes_ = 0;
};

/// Device copies of several lists in one block, for the price of one: allocating and waiting take
/// longer than copying. As bytes_to_device_sync.
std::vector<DeviceList> lists_to_device_sync(
    std::initializer_list<std::span<const std::byte>> lists);

template <typename Value>
DeviceBuffer to_device_sync(std::span<const Value> values) {
  return bytes_to_device_sync(values.data(), values.size_bytes());
}

/// `count` values read back from device memory; blocks until they are here.
template <typename Value>
std::vector<Value> to_host_sync(const void* source, std::size_t count) {
  std::vector<Value> values(count);
  if (count > 0) {
    cuda_check(cudaMemcpy(values.data(), source, count * sizeof(Value), cudaMemcpyDefault),
               "cudaMemcpy");
  }
  return values;
}

}  // namespace magi
