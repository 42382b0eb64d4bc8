// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/order.cuh"
#include "kernels/sm90/backward/params.hpp"
#include "kernels/sm90/backward/shared.cuh"

namespace magi::sm90 {

/// Where a thread's accumulators of dQ lie in a sum: element i of thread t of warpgroup w is float
/// w * dq_floats + (i / 4) * 512 + t * 4 + i % 4.
__device__ __forceinline__ int dq_place(int i, int thread) {
  return (i / 4) * 512 + thread * 4 + i % 4;
}

/// One warp that adds the warpgroups' dQ to the sums in device memory.
template <BackwardConfig kC>
class DqWriter {
 public:
  __device__ __forceinline__ DqWriter(BackwardStorage<kC>& shared, const BackwardParams& params)
      : shared_(shared), params_(params) {}

  __device__ __forceinline__ void run() {
    const bool is_first_lane = threadIdx.x % 32 == 0;
    for (std::uint32_t step = 0;; ++step) {
      ptx::named_barrier_sync(kDqFull, 160);
      const StepInfo& info = shared_.steps[step % kInfoStages];
      if ((info.flags & kEndOfSteps) != 0) break;
      const std::int32_t sum = info.sum;
      if (is_first_lane && params_.is_ordered) wait_turn(info);
      __syncwarp();
#pragma unroll
      for (int w = 0; w < kC.consumers; ++w) {
        if (w > 0) ptx::named_barrier_sync(kDqFull + w, 160);
        if (is_first_lane) {
          ptx::add_floats(
              params_.dq_sums + std::int64_t{sum} * (kC.rows * kC.dim) + w * kC.dq_floats(),
              shared_.dq[w], kC.dq_floats() * 4);
          ptx::store_commit();
        }
      }
      release<1>(0, is_first_lane);
      release<0>(1, is_first_lane);
      if (is_first_lane && params_.is_ordered) pass_turn(sum);
    }
    if (is_first_lane) ptx::store_wait<0>();
  }

 private:
  template <int kPending>
  __device__ __forceinline__ static void release(int warpgroup, bool is_first_lane) {
    if (is_first_lane) ptx::store_wait_read<kPending>();
    __syncwarp();
    ptx::named_barrier_arrive(kDqEmpty + warpgroup, 160);
  }

  /// Sums taken of the step's dQ before this one.
  __device__ __forceinline__ unsigned turn_of(const StepInfo& info) {
    const std::int32_t q_tile = info.q_tile;
    if (info.record != record_ || q_tile > q_tile_) {
      record_ = info.record;
      run_ = __ldg(&params_.records[record_].turn_end) - 1;
      load_run();
    }
    q_tile_ = q_tile;
    while (run_begin_ > q_tile) {
      --run_;
      load_run();
    }
    return turn_;
  }

  __device__ __forceinline__ void load_run() {
    const int2 run = __ldg(reinterpret_cast<const int2*>(params_.turns + run_));
    run_begin_ = run.x;
    turn_ = static_cast<unsigned>(run.y);
  }

  __device__ __forceinline__ void wait_turn(const StepInfo& info) {
    const unsigned turn = turn_of(info);
    while (ptx::load_acquire(params_.turn_counts + info.sum) != turn) {
    }
    ptx::fence_async_global();
  }

  __device__ __forceinline__ void pass_turn(std::int32_t sum) {
    ptx::store_wait<0>();
    ptx::fence_async_global();
    ptx::add_release(params_.turn_counts + sum, 1);
  }

  BackwardStorage<kC>& shared_;
  const BackwardParams& params_;
  std::int32_t record_ = -1;
  std::int32_t q_tile_ = 0;
  std::int32_t run_ = 0;
  std::int32_t run_begin_ = 0;
  unsigned turn_ = 0;
};

}  // namespace magi::sm90
