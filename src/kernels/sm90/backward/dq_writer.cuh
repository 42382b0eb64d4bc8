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

/// One warp per warpgroup that adds its dQ to the sums in device memory, in turn. Where one island
/// of rows meets a sum, the first in turn stores instead, so that the sum need not be cleared.
template <BackwardConfig kC>
class DqWriter {
 public:
  __device__ __forceinline__ DqWriter(BackwardStorage<kC>& shared, const BackwardParams& params,
                                      int warpgroup)
      : shared_(shared), params_(params), warpgroup_(warpgroup) {}

  __device__ __forceinline__ void run() {
    const bool is_first_lane = threadIdx.x % 32 == 0;
    for (std::uint32_t step = 0;; ++step) {
      const int stage = ring_stage<kInfoStages>(step);
      ptx::mbarrier_wait(shared_.step_full[stage], ring_parity<kInfoStages>(step));
      const StepInfo& info = shared_.steps[stage];
      if ((info.flags & kEndOfSteps) != 0) break;
      // The turn is waited for while the product is made.
      if (is_first_lane) take_turn(info);
      __syncwarp();
      ptx::named_barrier_sync(kDqFull + warpgroup_, 160);
      if (is_first_lane) write(info);
      __syncwarp();
      ptx::named_barrier_arrive(kDqEmpty + warpgroup_, 160);
      if (is_first_lane) pass_turn(info);
    }
    if (is_first_lane) ptx::store_wait<0>();
  }

 private:
  /// Where the turns of the step's q tile and island are counted.
  __device__ __forceinline__ unsigned* counter(const StepInfo& info) const {
    return params_.turn_counts + std::int64_t{info.group} * params_.num_turns +
           2 * (info.q_tile + turn_.y) + warpgroup_;
  }

  __device__ __forceinline__ void take_turn(const StepInfo& info) {
    find_turn(info);
    if (turn_.x == 0) return;
    while (ptx::load_acquire(counter(info)) != static_cast<unsigned>(turn_.x)) {
    }
    ptx::fence_async_global();
  }

  /// Records that come before the step's, its island, islands in its q tile.
  __device__ __forceinline__ void find_turn(const StepInfo& info) {
    const std::int32_t q_tile = info.q_tile;
    if (info.record == record_ && q_tile == q_tile_) return;
    num_islands_ = __ldg(params_.islands + q_tile);
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
  }

  __device__ __forceinline__ void load_run() {
    const int4 run = __ldg(reinterpret_cast<const int4*>(params_.turns + run_));
    run_begin_ = run.x;
    turn_ = make_int2(run.y, run.z);
  }

  __device__ __forceinline__ void write(const StepInfo& info) const {
    constexpr int kBytes = kC.dq_floats() * 4;
    float* target =
        params_.dq_sums + std::int64_t{info.sum} * (kC.rows * kC.dim) + warpgroup_ * kC.dq_floats();
    if (num_islands_ == 1 && turn_.x == 0) {
      ptx::store_bytes(target, shared_.dq[warpgroup_], kBytes);
    } else {
      ptx::add_floats(target, shared_.dq[warpgroup_], kBytes);
    }
    ptx::store_commit();
    ptx::store_wait_read<0>();
  }

  __device__ __forceinline__ void pass_turn(const StepInfo& info) const {
    ptx::store_wait<0>();
    ptx::fence_async_global();
    ptx::add_release(counter(info), 1);
  }

  BackwardStorage<kC>& shared_;
  const BackwardParams& params_;
  const int warpgroup_;
  std::int32_t record_ = -1;
  std::int32_t q_tile_ = 0;
  std::int32_t run_ = 0;
  std::int32_t run_begin_ = 0;
  int2 turn_ = make_int2(0, 0);
  std::int32_t num_islands_ = 0;
};

}  // namespace magi::sm90
