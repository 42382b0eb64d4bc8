// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "cuda/check.hpp"

namespace magi {

/// The driver's entry point `name` as of CUDA `version` (12000 for 12.0), looked up at run time so
/// that nothing links libcuda. Throws CudaError where the driver has none.
void* driver_function(const char* name, unsigned version);

/// Throws CudaError naming `call` unless the driver succeeded.
void driver_check(CUresult result, const char* call);

}  // namespace magi
