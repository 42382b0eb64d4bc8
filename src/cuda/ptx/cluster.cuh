// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/barrier.cuh"

// What CTAs of a cluster do in each other's shared memory.
namespace magi::ptx {

/// The CTA's number in its cluster.
__device__ __forceinline__ int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// Waits for all threads of the cluster that have not ended, and for what they have written.
__device__ __forceinline__ void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release;\n"
      "barrier.cluster.wait.acquire;" ::
          : "memory");
}

/// The address, in another CTA of the cluster, of what lies at `pointer` in this one.
__device__ __forceinline__ std::uint32_t peer_address(const void* pointer, int rank) {
  std::uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(shared_address(pointer)), "r"(rank));
  return address;
}

/// Stores a word in another CTA's shared memory.
__device__ __forceinline__ void store_peer(std::uint32_t address, std::int32_t value) {
  asm volatile("st.shared::cluster.s32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

/// One arrival at another CTA's mbarrier, after all that the thread has done or seen.
__device__ __forceinline__ void mbarrier_arrive_peer(std::uint32_t address) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(address)
               : "memory");
}

/// Waits for a phase that another CTA completes, and for what it has written.
__device__ __forceinline__ void mbarrier_wait_peer(
    Mbarrier& barrier, std::uint32_t parity,
    const std::source_location& where = std::source_location::current()) {
  const auto is_over = [&] {
    std::uint32_t is_done = 0;
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(is_done)
        : "r"(shared_address(&barrier)), "r"(parity)
        : "memory");
    return is_done != 0;
  };
  wait_until(
      is_over, {"barrier phase", &barrier, parity}, [&] { return barrier; }, where);
}

/// If the condition holds, without a branch: announces `bytes` at `barrier` with an arrival, and
/// copies as many from `source` to `target` of another CTA, whose barrier at `target_barrier` they
/// complete.
__device__ __forceinline__ void exchange_bytes_if(bool condition, Mbarrier& barrier,
                                                  std::uint32_t target, const void* source,
                                                  int bytes, std::uint32_t target_barrier) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.u32 p, %0, 0;\n"
      "@p mbarrier.arrive.expect_tx.shared::cta.b64 _, [%1], %2;\n"
      "@p cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
      " [%3], [%4], %2, [%5];\n}" ::"r"(static_cast<std::uint32_t>(condition)),
      "r"(shared_address(&barrier)), "r"(bytes), "r"(target), "r"(shared_address(source)),
      "r"(target_barrier)
      : "memory");
}

}  // namespace magi::ptx
