// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/order.cuh"
#include "kernels/sm90/backward/params.hpp"
#include "kernels/sm90/backward/shared.cuh"

// Who adds to a sum of dQ in turn does so after everyone before it: its adds come after the
// watcher's acquire of the counter (the watcher's arrival at turn_ready and the consumers' wait lie
// between), and before the passer's release of it (likewise their arrival at `added`); causality
// passes through barriers of the CTA. The finisher copies a sum after the last add for the same
// reason, and behind a proxy fence, as its copies are asynchronous.
namespace magi::sm90 {

/// The one thread that looks turns up, ahead of the consumers, and tells them when each has come.
template <BackwardConfig kC>
class TurnWatcher {
 public:
  __device__ __forceinline__ TurnWatcher(BackwardStorage<kC>& shared, const BackwardParams& params)
      : shared_(shared), params_(params) {}

  __device__ __forceinline__ void run() {
    std::uint32_t step = 0;
    while (watch(step)) ++step;
    tell(step, {.counter = kEndOfTurns});
  }

 private:
  /// False after the last step.
  __device__ __forceinline__ bool watch(std::uint32_t step) {
    const int stage = ring_stage<kInfoStages>(step);
    ptx::mbarrier_wait(shared_.step_full[stage], ring_parity<kInfoStages>(step));
    const StepInfo& info = shared_.steps[stage];
    if ((info.flags & kEndOfSteps) != 0) return false;
    find_turn(info);
    const std::int64_t counter =
        std::int64_t{info.group} * params_.num_turns + info.q_tile + turn_.y;
    if (turn_.x != 0) await(params_.turn_counts + counter);
    tell(step, {.counter = counter,
                .is_first = num_islands_ == 1 && turn_.x == 0 ? 1 : 0,
                .is_last = is_last_ ? 1 : 0,
                .group = info.group,
                .q_tile = q_tile_});
    return true;
  }

  /// Records that come before the step's, its island, islands in its q tile, whether its sum ends.
  __device__ __forceinline__ void find_turn(const StepInfo& info) {
    const std::int32_t q_tile = info.q_tile;
    if (info.record == record_ && q_tile == q_tile_) return;
    num_islands_ = __ldg(params_.islands + q_tile);
    if (info.record != record_ || q_tile > q_tile_) {
      record_ = info.record;
      run_ = __ldg(&params_.records[record_].run_end) - 1;
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
    is_last_ = run.w != 0;
  }

  __device__ __forceinline__ void await(const unsigned* counter) const {
    while (ptx::load_acquire(counter) != static_cast<unsigned>(turn_.x)) {
    }
  }

  __device__ __forceinline__ void tell(std::uint32_t step, const TurnInfo& turn) const {
    const int stage = ring_stage<kTurnStages>(step);
    ptx::mbarrier_wait(shared_.turn_empty[stage], ring_parity<kTurnStages>(step) ^ 1);
    shared_.turns[stage] = turn;
    ptx::mbarrier_arrive(shared_.turn_ready[stage]);
  }

  BackwardStorage<kC>& shared_;
  const BackwardParams& params_;
  std::int32_t record_ = -1;
  std::int32_t q_tile_ = 0;
  std::int32_t run_ = 0;
  std::int32_t run_begin_ = 0;
  int2 turn_ = make_int2(0, 0);
  std::int32_t num_islands_ = 0;
  bool is_last_ = false;
};

/// The one thread that passes each turn on when both warpgroups have added, or has dq finished
/// where nobody adds any more. NOTE: its release waits for all adds before it, so the watcher
/// cannot do this too.
template <BackwardConfig kC>
class TurnPasser {
 public:
  __device__ __forceinline__ TurnPasser(BackwardStorage<kC>& shared, const BackwardParams& params)
      : shared_(shared), params_(params) {}

  __device__ __forceinline__ void run() {
    std::uint32_t step = 0;
    while (pass(step)) ++step;
    if constexpr (kC.is_ordered) finish(kEndOfFinishes, 0);
  }

 private:
  /// False after the last step.
  __device__ __forceinline__ bool pass(std::uint32_t step) {
    const int stage = ring_stage<kTurnStages>(step);
    const std::uint32_t parity = ring_parity<kTurnStages>(step);
    ptx::mbarrier_wait(shared_.turn_ready[stage], parity);
    const TurnInfo& turn = shared_.turns[stage];
    const std::int64_t counter = turn.counter;
    if (counter == kEndOfTurns) return false;
    ptx::mbarrier_wait(shared_.added[stage], parity);
    const bool is_last = turn.is_last != 0;
    if constexpr (kC.is_ordered) {
      if (is_last) {
        // The finisher's copies go past what this multiprocessor still has on the way.
        ptx::fence_gpu();
        finish(turn.group, turn.q_tile);
      }
    }
    ptx::mbarrier_arrive(shared_.turn_empty[stage]);
    if (!is_last) ptx::add_release(params_.turn_counts + counter, 1);
    return true;
  }

  __device__ __forceinline__ void finish(std::int32_t group, std::int32_t q_tile) {
    const int stage = ring_stage<kFinishStages>(num_finishes_);
    ptx::mbarrier_wait(shared_.finish_empty[stage], ring_parity<kFinishStages>(num_finishes_) ^ 1);
    shared_.finishes[stage] = {.group = group, .q_tile = q_tile};
    ptx::mbarrier_arrive(shared_.finish_full[stage]);
    ++num_finishes_;
  }

  BackwardStorage<kC>& shared_;
  const BackwardParams& params_;
  std::uint32_t num_finishes_ = 0;
};

}  // namespace magi::sm90
