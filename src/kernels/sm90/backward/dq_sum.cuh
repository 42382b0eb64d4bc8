// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/copy.cuh"
#include "kernels/sm90/backward/params.hpp"
#include "kernels/sm90/backward/shared.cuh"

namespace magi::sm90 {

/// The place where a thread's accumulators of dQ lie in a sum: element i of thread t of warpgroup w
/// is float w * dq_floats + dq_place(i, t). 512 floats are a chunk, 8 columns of 64 rows. In an
/// ordered sum the places of neighbouring pairs of rows are exchanged, so that the dQ converter
/// reads them from shared memory without bank conflicts; each 8 threads still share a line.
template <bool kIsOrdered>
__device__ __forceinline__ int dq_place(int i, int thread) {
  const int place = kIsOrdered ? thread ^ (thread >> 3 & 3) : thread;
  return (i / 4) * 512 + place * 4 + i % 4;
}

/// The column of dQ that is number `index` of a warpgroup's, at head dim 192: of three panels of 64
/// each warpgroup has one and half of the middle one. At other head dims each has half of the
/// columns.
__device__ __forceinline__ int dq_column_of_three_panels(int warpgroup, int index) {
  return index < 64 ? 128 * warpgroup + index : 32 * warpgroup + index;
}

/// Waits until the step may add its dQ. Returns whether it is the first, so that it stores instead.
template <BackwardConfig kC>
__device__ __forceinline__ bool wait_to_add(BackwardStorage<kC>& shared, std::uint32_t step) {
  if constexpr (!kC.is_ordered) return false;
  const RingPlace<kAddStages> at(step);
  shared.add_ring.wait_full(at);
  return ptx::uniform(shared.adds[at.stage()].is_first) != 0;
}

/// The place where a warpgroup's dQ of a step goes, in sum number `sum`.
template <BackwardConfig kC>
class DqTarget {
 public:
  __device__ __forceinline__ DqTarget(const BackwardParams& params, int warpgroup, std::int64_t sum)
      : data_(params.dq.sums + sum * (kC.rows * kC.dim_qk) + warpgroup * kC.dq_floats() +
              dq_place<kC.is_ordered>(0, ptx::thread_index() & 127)) {}

  /// Adds the thread's accumulators from number `first` on, or stores them if `is_first`.
  template <int kCount>
  __device__ __forceinline__ void put(int first, const float (&dq)[kCount], bool is_first) const {
    if (is_first) {
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        ptx::store_float4(place(first + i), dq[i], dq[i + 1], dq[i + 2], dq[i + 3]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        ptx::add_float4(place(first + i), dq[i], dq[i + 1], dq[i + 2], dq[i + 3]);
      }
    }
  }

 private:
  __device__ __forceinline__ float* place(int i) const {
    return data_ + dq_place<kC.is_ordered>(i, 0);
  }

  float* data_;
};

/// Signals that this warp has added dQ of a step.
template <BackwardConfig kC>
__device__ __forceinline__ void signal_dq_added(BackwardStorage<kC>& shared, std::uint32_t step) {
  if constexpr (kC.is_ordered) arrive_warp(shared.added.at(RingPlace<kAddStages>(step)));
}

/// Adds a warpgroup's dQ of a step to sum number `sum`, or stores it there if it is the first.
template <BackwardConfig kC>
__device__ __forceinline__ void add_dq(BackwardStorage<kC>& shared, const BackwardParams& params,
                                       int warpgroup, std::uint32_t step, std::int64_t sum,
                                       bool is_first, const float (&dq)[kC.dq_columns() / 2]) {
  DqTarget<kC>(params, warpgroup, sum).put(0, dq, is_first);
  signal_dq_added(shared, step);
}

}  // namespace magi::sm90
