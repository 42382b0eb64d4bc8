// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "magi/error.hpp"

namespace magi {

/// Throws CudaError naming the call when `status` is not success.
inline void cuda_check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  // The runtime keeps the error too: the thread's next launch would be told of it.
  static_cast<void>(cudaGetLastError());
  throw CudaError(std::string(call) + ": " + cudaGetErrorString(status), static_cast<int>(status));
}

}  // namespace magi
