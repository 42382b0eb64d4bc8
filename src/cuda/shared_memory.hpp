// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

#include "cuda/check.hpp"
#include "cuda/device.hpp"

namespace magi {

/// Lets one kernel use more than 48 KiB of dynamic shared memory: asked once per device, since the
/// driver's call takes a microsecond of every launch. One object per kernel; any threads.
class SharedMemoryGrant {
 public:
  /// Allocates on the current device.
  template <typename Kernel>
  void ensure(Kernel* kernel, int bytes) {
    const std::int32_t device = current_device();
    const std::uint64_t bit = device < 64 ? std::uint64_t{1} << device : 0;
    if ((granted_.load(std::memory_order_acquire) & bit) != 0) return;
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
               "cudaFuncSetAttribute");
    granted_.fetch_or(bit, std::memory_order_release);
  }

 private:
  std::atomic<std::uint64_t> granted_ = 0;  ///< by device
};

}  // namespace magi
