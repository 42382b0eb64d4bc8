// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <source_location>

#include "cuda/ptx/wait.cuh"

// Barriers of one CTA: mbarriers in shared memory, and the 16 named hardware barriers.
namespace magi::ptx {

using Mbarrier = std::uint64_t;

/// The number of times that a warp arrives at a barrier when all its lanes are done with what it
/// guards. racecheck follows a barrier only from the threads that arrive at it themselves: in
/// builds for it every lane arrives, in others one lane for all.
#ifdef MAGI_RACECHECK
inline constexpr int kArrivalsPerWarp = 32;
#else
inline constexpr int kArrivalsPerWarp = 1;
#endif

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void mbarrier_init(Mbarrier& barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)),
               "r"(arrivals)
               : "memory");
}

/// Makes initialised mbarriers visible to the asynchronous proxy.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// One arrival that also announces `bytes` of asynchronous copies.
__device__ __forceinline__ void mbarrier_arrive_expect(Mbarrier& barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
      "r"(bytes)
      : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(Mbarrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier))
               : "memory");
}

/// One arrival where the condition holds, without a branch.
__device__ __forceinline__ void mbarrier_arrive_if(Mbarrier& barrier, bool condition) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.u32 p, %1, 0;\n"
      "@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}" ::"r"(shared_address(&barrier)),
      "r"(static_cast<std::uint32_t>(condition))
      : "memory");
}

/// Whether the phase of that parity is over; the hardware may suspend the thread for a while before
/// it says no. That is what a loop wants, and mbarrier_test is for those who have other work to do:
/// two instructions.
__device__ __forceinline__ bool mbarrier_try_wait(Mbarrier& barrier, std::uint32_t parity) {
  std::uint32_t is_done = 0;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(is_done)
      : "r"(shared_address(&barrier)), "r"(parity)
      : "memory");
  return is_done != 0;
}

/// Whether the phase of that parity is over, answered at once.
__device__ __forceinline__ bool mbarrier_test(Mbarrier& barrier, std::uint32_t parity) {
  std::uint32_t is_done = 0;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(is_done)
      : "r"(shared_address(&barrier)), "r"(parity)
      : "memory");
  return is_done != 0;
}

/// Waits until the phase of the given parity has completed.
__device__ __forceinline__ void mbarrier_wait(
    Mbarrier& barrier, std::uint32_t parity,
    const std::source_location& where = std::source_location::current()) {
  wait_until([&] { return mbarrier_try_wait(barrier, parity); },
             {"barrier phase", &barrier, parity}, [&] { return barrier; }, where);
}

/// Waits on named barrier `id` for `threads` arrivals, its own included.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Arrives at named barrier `id` without waiting.
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace magi::ptx
