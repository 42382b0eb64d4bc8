// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

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

/// Calls body(unit) with a value of `unit_bytes` bytes: 16, 8, 4 or 2.
template <typename Body>
void with_unit(std::int64_t unit_bytes, const Body& body) {
  if (unit_bytes == 16) return body(uint4{});
  if (unit_bytes == 8) return body(std::uint64_t{});
  if (unit_bytes == 4) return body(std::uint32_t{});
  body(std::uint16_t{});
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
