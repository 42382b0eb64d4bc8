// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/order.cuh"
#include "kernels/sm90/backward/params.hpp"
#include "kernels/sm90/backward/shared.cuh"

// Who adds to a sum of dQ in turn does so after everyone before it: its adds come after the
// watcher's acquire of the counter (the watcher's arrival at turn_ready and the consumers' wait lie
// between), and before the passer's release of it (likewise their arrival at `added`); causality
// passes through barriers of the CTA.
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
    tell(step, kEndOfTurns, false);
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
    tell(step, counter, num_islands_ == 1 && turn_.x == 0);
    return true;
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

  __device__ __forceinline__ void await(const unsigned* counter) const {
    while (ptx::load_acquire(counter) != static_cast<unsigned>(turn_.x)) {
    }
  }

  __device__ __forceinline__ void tell(std::uint32_t step, std::int64_t counter,
                                       bool is_first) const {
    const int stage = ring_stage<kTurnStages>(step);
    ptx::mbarrier_wait(shared_.turn_empty[stage], ring_parity<kTurnStages>(step) ^ 1);
    shared_.turns[stage] = {.counter = counter, .is_first = is_first ? 1 : 0};
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
};

/// The one thread that passes each turn on when both warpgroups have added. NOTE: its release waits
/// for all adds before it, so the watcher cannot do this too.
template <BackwardConfig kC>
__device__ __forceinline__ void pass_turns(BackwardStorage<kC>& shared,
                                           const BackwardParams& params) {
  for (std::uint32_t step = 0;; ++step) {
    const int stage = ring_stage<kTurnStages>(step);
    const std::uint32_t parity = ring_parity<kTurnStages>(step);
    ptx::mbarrier_wait(shared.turn_ready[stage], parity);
    const std::int64_t counter = shared.turns[stage].counter;
    if (counter == kEndOfTurns) break;
    ptx::mbarrier_wait(shared.added[stage], parity);
    ptx::mbarrier_arrive(shared.turn_empty[stage]);
    ptx::add_release(params.turn_counts + counter, 1);
  }
}

}  // namespace magi::sm90
