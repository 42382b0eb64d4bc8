// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/ptx/order.cuh"

// Words in memory by which GPUs of one host, and the host, tell each other that something is done.
//
//   writer: all threads store -> block barrier -> one thread fence_system -> store_system(word)
//   reader: load_acquire_system(word) -> fence_system -> reads; fence_async_global before reads by
//           bulk copies, which the fences of ordinary accesses do not cover
namespace magi::ptx {

/// A read that what comes after it in the thread is ordered behind, for all GPUs and the host.
__device__ __forceinline__ std::uint64_t load_acquire_system(const std::uint64_t* address) {
  std::uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}
__device__ __forceinline__ std::int32_t load_acquire_system(const std::int32_t* address) {
  std::int32_t value;
  asm volatile("ld.acquire.sys.global.s32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

/// A write that all GPUs and the host see whole; it orders nothing.
__device__ __forceinline__ void store_system(std::uint64_t* address, std::uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}
__device__ __forceinline__ void store_system(std::int32_t* address, std::int32_t value) {
  asm volatile("st.relaxed.sys.global.s32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

}  // namespace magi::ptx
