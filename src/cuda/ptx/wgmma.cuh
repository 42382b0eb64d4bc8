// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "magi/tensor.hpp"

// Warpgroup matrix products m64nNk16, float32 accumulators. Accumulator of lane l in warp w: d[4c +
// {0, 1}] = row 16w + l/4, columns 8c + 2(l%4) + {0, 1}; d[4c + {2, 3}] the same columns, 8 rows
// below.
namespace magi::ptx {

/// ss: A and B K-major in shared memory; mn: both MN-major there; kn: A K-major, B MN-major. rs: A
/// in registers (k-step s uses a[4s .. 4s+3]), B MN-major in shared memory; rk: likewise, B
/// K-major. Wgmma<type, N> is in wgmma_n<N>.cuh, which generate_wgmma.py writes in a build.
template <DType kType, int kColumns>
struct Wgmma;

/// Before the first product after registers or accumulators were written.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Waits until at most kPending committed groups are in flight.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Ties values to this point of the program: they are neither read nor written across it. Placed
/// after wgmma_wait on what the products wrote, and on what the next writer of an A operand reads.
template <int kCount>
__device__ __forceinline__ void pin(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(values[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void pin(std::uint32_t (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(values[i])::"memory");
}

/// Ends the life of values that the next product overwrites: their registers are free until then.
template <int kCount>
__device__ __forceinline__ void undefine(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "=f"(values[i]));
}

}  // namespace magi::ptx
