// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Words in memory by which GPUs of one host, and the host, tell each other that something is done.
//
//   writer: all threads store -> block barrier -> one thread fence_system -> store_system(word)
//   reader: load_acquire_system(word) -> fence_system -> reads; fence_bulk_copies before reads by
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

/// Orders all that the thread has done or seen before what it does after, for all GPUs and the
/// host.
__device__ __forceinline__ void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

/// Orders what the thread has seen in device memory before its bulk copies that read there.
__device__ __forceinline__ void fence_bulk_copies() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

/// Nanoseconds of a clock that all multiprocessors of a GPU share.
__device__ __forceinline__ std::uint64_t system_time_ns() {
  std::uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

__device__ __forceinline__ void sleep_ns(unsigned duration) {
  asm volatile("nanosleep.u32 %0;" ::"r"(duration) : "memory");
}

}  // namespace magi::ptx
