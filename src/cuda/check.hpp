// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "magi/error.hpp"

namespace magi {

/// Drops an error of a call whose failure changes nothing, or is told in another way: gives its
/// status on. The runtime keeps a failure, too, and would tell the thread's next launch of it.
inline cudaError_t cuda_forget(cudaError_t status) noexcept {
  if (status != cudaSuccess) static_cast<void>(cudaGetLastError());
  return status;
}

/// Throws CudaError naming the call when `status` is not success.
inline void cuda_check(cudaError_t status, const char* call) {
  if (cuda_forget(status) == cudaSuccess) return;
  throw CudaError(std::string(call) + ": " + cudaGetErrorString(status), static_cast<int>(status));
}

}  // namespace magi
