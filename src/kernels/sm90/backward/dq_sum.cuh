// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/copy.cuh"
#include "kernels/sm90/backward/params.hpp"
#include "kernels/sm90/backward/shared.cuh"

namespace magi::sm90 {

/// Where a thread's accumulators of dQ lie in a sum: element i of thread t of warpgroup w is float
/// w * dq_floats + dq_place(i, t). 512 floats are a chunk, 8 columns of 64 rows. In a deterministic
/// sum the places of neighbouring pairs of rows are exchanged, so that the dQ converter reads them
/// from shared memory without bank conflicts; each 8 threads still share a line.
template <bool kIsDeterministic>
__device__ __forceinline__ int dq_place(int i, int thread) {
  const int place = kIsDeterministic ? thread ^ (thread >> 3 & 3) : thread;
  return (i / 4) * 512 + place * 4 + i % 4;
}

/// Waits until the step may add its dQ. Returns whether it is the first to do so: the sum holds
/// nothing yet.
template <BackwardConfig kC>
__device__ __forceinline__ bool wait_to_add(BackwardStorage<kC>& shared, std::uint32_t step) {
  if constexpr (!kC.is_ordered) return false;
  const RingPlace<kAddStages> at(step);
  shared.add_ring.wait_full(at);
  return ptx::uniform(shared.adds[at.stage()].is_first) != 0;
}

/// Adds a warpgroup's dQ of a step to sum number `sum`, or stores it there if it is the first.
template <BackwardConfig kC>
__device__ __forceinline__ void add_dq(BackwardStorage<kC>& shared, const BackwardParams& params,
                                       int warpgroup, std::uint32_t step, std::int64_t sum,
                                       bool is_first, const float (&dq)[kC.dq_columns() / 2]) {
  const int thread = ptx::thread_index() & 127;
  float* target = params.dq.sums + sum * (kC.rows * kC.dim_qk) + warpgroup * kC.dq_floats() +
                  dq_place<kC.is_ordered>(0, thread);
  if (is_first) {
#pragma unroll
    for (int i = 0; i < kC.dq_columns() / 2; i += 4) {
      ptx::store_float4(target + dq_place<kC.is_ordered>(i, 0), dq[i], dq[i + 1], dq[i + 2],
                        dq[i + 3]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kC.dq_columns() / 2; i += 4) {
      ptx::add_float4(target + dq_place<kC.is_ordered>(i, 0), dq[i], dq[i + 1], dq[i + 2],
                      dq[i + 3]);
    }
  }
  if constexpr (kC.is_ordered) arrive_warp(shared.added.at(RingPlace<kAddStages>(step)));
}

}  // namespace magi::sm90
