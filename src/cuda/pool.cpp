// SPDX-License-Identifier: Apache-2.0
#include "cuda/pool.hpp"

#include <cstdint>
#include <limits>
#include <map>
#include <mutex>

#include "cuda/check.hpp"

namespace magi {
namespace {

cudaMemPool_t make_pool(std::int32_t device) {
  cudaMemPoolProps props{};
  props.allocType = cudaMemAllocationTypePinned;
  props.location.type = cudaMemLocationTypeDevice;
  props.location.id = device;
  cudaMemPool_t pool = nullptr;
  cuda_check(cudaMemPoolCreate(&pool, &props), "cudaMemPoolCreate");
  std::uint64_t kept = std::numeric_limits<std::uint64_t>::max();
  cuda_check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept),
             "cudaMemPoolSetAttribute");
  return pool;
}

/// The device's pool. Never destroyed: a pool may be in use until the process ends.
cudaMemPool_t pool_of(std::int32_t device) {
  static std::mutex mutex;
  static auto& pools = *new std::map<std::int32_t, cudaMemPool_t>;
  const std::lock_guard lock(mutex);
  cudaMemPool_t& pool = pools[device];
  if (pool == nullptr) pool = make_pool(device);
  return pool;
}

}  // namespace

void* pool_allocate(std::size_t size_bytes, std::int32_t device, cudaStream_t stream) {
  void* data = nullptr;
  cuda_check(cudaMallocFromPoolAsync(&data, size_bytes, pool_of(device), stream),
             "cudaMallocFromPoolAsync");
  return data;
}

void pool_release(void* data, cudaStream_t stream) noexcept {
  static_cast<void>(cudaFreeAsync(data, stream));
}

}  // namespace magi
