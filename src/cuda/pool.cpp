// SPDX-License-Identifier: Apache-2.0
#include "cuda/pool.hpp"

#include <limits>
#include <map>
#include <mutex>

#include "cuda/capture.hpp"
#include "cuda/check.hpp"

namespace magi {
namespace {

struct DevicePool {
  cudaMemPool_t handle = nullptr;
  std::int32_t num_leases = 0;

  /// Sets how much free memory the pool holds back from the driver.
  cudaError_t keep(std::uint64_t size_bytes) const {
    return cudaMemPoolSetAttribute(handle, cudaMemPoolAttrReleaseThreshold, &size_bytes);
  }
};

std::mutex pools_mutex;

void create(DevicePool& pool, std::int32_t device) {
  cudaMemPoolProps props{};
  props.allocType = cudaMemAllocationTypePinned;
  props.location.type = cudaMemLocationTypeDevice;
  props.location.id = device;
  cuda_check(cudaMemPoolCreate(&pool.handle, &props), "cudaMemPoolCreate");
}

/// The device's pool. Never destroyed: a pool may be in use until the process ends.
DevicePool& pool_of_locked(std::int32_t device) {
  static auto& pools = *new std::map<std::int32_t, DevicePool>;
  DevicePool& pool = pools[device];
  if (pool.handle == nullptr) create(pool, device);
  return pool;
}

cudaMemPool_t handle_of(std::int32_t device) {
  const std::lock_guard lock(pools_mutex);
  return pool_of_locked(device).handle;
}

}  // namespace

void* pool_allocate(std::size_t size_bytes, std::int32_t device, cudaStream_t stream) {
  void* data = nullptr;
  cuda_check(cudaMallocFromPoolAsync(&data, size_bytes, handle_of(device), stream),
             "cudaMallocFromPoolAsync");
  return data;
}

void pool_release(void* data, cudaStream_t stream) noexcept {
  cuda_forget(cudaFreeAsync(data, stream));
}

PoolLease::PoolLease(std::int32_t device) {
  const std::lock_guard lock(pools_mutex);
  DevicePool& pool = pool_of_locked(device);
  if (pool.num_leases == 0) {
    const UncapturedScope scope;  // also while a stream is captured
    cuda_check(pool.keep(std::numeric_limits<std::uint64_t>::max()), "cudaMemPoolSetAttribute");
  }
  ++pool.num_leases;
  pool_ = &pool;
}

PoolLease::~PoolLease() {
  if (pool_ == nullptr) return;
  const std::lock_guard lock(pools_mutex);
  auto& pool = *static_cast<DevicePool*>(pool_);
  if (--pool.num_leases > 0) return;
  // Also while another thread captures; a failed device has no memory to give back.
  const UncapturedScope scope;
  cuda_forget(pool.keep(0));
  cuda_forget(cudaMemPoolTrimTo(pool.handle, 0));
}

}  // namespace magi
