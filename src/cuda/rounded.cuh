// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace magi {

/// Four elements in 16 bits each, rounded to nearest even.
__device__ __forceinline__ uint2 rounded(float4 value, __half) {
  const __half2 low = __floats2half2_rn(value.x, value.y);
  const __half2 high = __floats2half2_rn(value.z, value.w);
  return {reinterpret_cast<const unsigned&>(low), reinterpret_cast<const unsigned&>(high)};
}
__device__ __forceinline__ uint2 rounded(float4 value, __nv_bfloat16) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(value.x, value.y);
  const __nv_bfloat162 high = __floats2bfloat162_rn(value.z, value.w);
  return {reinterpret_cast<const unsigned&>(low), reinterpret_cast<const unsigned&>(high)};
}

}  // namespace magi
