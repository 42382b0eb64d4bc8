// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "base/check.hpp"
#include "magi/tensor.hpp"

namespace magi {

/// Calls body(element) with an element of a floating-point type.
template <typename Body>
void with_float(DType dtype, const Body& body) {
  if (dtype == DType::Float64) return body(double{});
  if (dtype == DType::Float32) return body(float{});
  if (dtype == DType::Float16) return body(__half{});
  MAGI_CHECK(dtype == DType::BFloat16);
  body(__nv_bfloat16{});
}

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
