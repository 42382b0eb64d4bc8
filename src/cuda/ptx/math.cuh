// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "magi/tensor.hpp"

// Arithmetic instructions that C++ has no exact spelling for.
namespace magi::ptx {

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Two floats rounded to nearest even in one register, `low` in the low half.
template <DType kType>
__device__ __forceinline__ std::uint32_t pack_half2(float low, float high) {
  std::uint32_t packed;
  if constexpr (kType == DType::BFloat16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

/// The two, `low` first.
template <DType kType>
__device__ __forceinline__ float2 unpack_half2(std::uint32_t packed) {
  if constexpr (kType == DType::BFloat16) {
    return {__uint_as_float(packed << 16), __uint_as_float(packed & 0xffff0000u)};
  } else {
    return __half22float2(*reinterpret_cast<const __half2*>(&packed));
  }
}

/// A value that all lanes of the warp share, in a form the compiler knows to be uniform: branches
/// on it need no reconvergence, addresses made of it live in uniform registers.
__device__ __forceinline__ int uniform(int value) { return __reduce_max_sync(0xffffffffu, value); }

/// Hides where the value comes from: the compiler keeps it alone, not what else could be made of
/// it.
__device__ __forceinline__ void hide(std::uint32_t& value) { asm volatile("" : "+r"(value)); }

/// The thread's index, read anew: values made of it are computed where they are used instead of
/// being kept in registers across a loop.
__device__ __forceinline__ int thread_index() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

/// Registers per thread: raises or lowers what this warpgroup holds.
template <int kRegisters>
__device__ __forceinline__ void raise_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void lower_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace magi::ptx
