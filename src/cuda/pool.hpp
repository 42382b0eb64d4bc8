// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <utility>

// Stream-ordered device memory of the library. One pool per device serves the whole process, so
// that many plans hold their largest demand and not the sum of their demands.
namespace magi {

/// Memory for work that `stream` is given later. Throws CudaError where none is left.
void* pool_allocate(std::size_t size_bytes, std::int32_t device, cudaStream_t stream);
/// Takes it back, for work that is enqueued later still.
void pool_release(void* data, cudaStream_t stream) noexcept;

/// Held by whoever takes memory of a device's pool call after call. While one lives the pool keeps
/// what is given back for the next call; with the last one it returns its memory to the driver:
/// what is free at once, the rest when the device is next waited for.
class PoolLease {
 public:
  PoolLease() = default;
  explicit PoolLease(std::int32_t device);
  ~PoolLease();
  PoolLease(PoolLease&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)) {}
  PoolLease& operator=(PoolLease&& other) noexcept {
    std::swap(pool_, other.pool_);
    return *this;
  }
  PoolLease(const PoolLease&) = delete;
  PoolLease& operator=(const PoolLease&) = delete;

 private:
  void* pool_ = nullptr;
};

}  // namespace magi
