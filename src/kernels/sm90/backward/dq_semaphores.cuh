// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/order.cuh"
#include "kernels/sm90/backward/params.hpp"
#include "kernels/sm90/backward/shared.cuh"

// docs/kernels/backward.md, "Ordered sums of dQ", has an example of the values.
//
// Why additions to a dQ sum have an order: a step's adds come after the waiter's acquire, through
// the waiter's arrival at add_ring.full and the consumers' wait for it. They come before the
// signaller's release, through the consumers' arrival at `added`. Barriers of a CTA pass causality
// on. So a step whose semaphore is awaited adds after every step before it in the order. For the
// same reason the dQ converter copies a sum after the last add; it also needs a proxy fence,
// because its copies are asynchronous.
namespace magi::sm90 {

/// The one thread that looks up semaphore values ahead of the consumers, and waits for them.
template <BackwardConfig kC>
class DqSemaphoreWaiter {
 public:
  __device__ __forceinline__ DqSemaphoreWaiter(BackwardStorage<kC>& shared,
                                               const BackwardParams& params)
      : shared_(shared), params_(params) {}

  __device__ __forceinline__ void run() {
    std::uint32_t step = 0;
    while (wait_for(step)) ++step;
    send(step, {.semaphore = kEndOfAdds});
  }

 private:
  /// Waits until the step may add its dQ, then signals. Returns false after the last step.
  __device__ __forceinline__ bool wait_for(std::uint32_t step) {
    const RingPlace<kC.step_stages()> place(step);
    shared_.step_full.wait(place);
    const StepInfo& info = shared_.steps[place.stage()];
    if ((info.flags & kEndOfSteps) != 0) return false;
    find_value(info);
    const DqOrder& order = params_.dq_order;
    const std::int64_t semaphore =
        std::int64_t{info.group} * order.num_semaphores + info.q_tile + component_;
    if (value_ != 0) {
      // Each CTA of a k tile adds its own columns and signals once.
      const unsigned value = static_cast<unsigned>(value_) * kC.ctas();
      if constexpr (kC.ctas() == 1) {
        ptx::wait_semaphore(order.semaphores + semaphore, value);
      } else {
        ptx::wait_semaphore_at_least(order.semaphores + semaphore, value);
      }
    }
    send(step, {.semaphore = semaphore,
                .is_first = num_components_ == 1 && value_ == 0 ? 1 : 0,
                .is_last = is_last_ ? 1 : 0,
                .group = info.group,
                .q_tile = q_tile_});
    return true;
  }

  /// Finds the semaphore value of a step, its component, the number of components in its q tile and
  /// whether it completes its sum.
  __device__ __forceinline__ void find_value(const StepInfo& info) {
    const std::int32_t q_tile = info.q_tile;
    if (info.record == record_ && q_tile == q_tile_) return;
    num_components_ = __ldg(params_.dq_order.num_components + q_tile);
    if (info.record != record_ || q_tile > q_tile_) {
      // A record's q tiles are walked from the last to the first, and so are its runs.
      record_ = info.record;
      run_ = __ldg(&params_.items.records[record_].run_end) - 1;
      load_run();
    }
    q_tile_ = q_tile;
    while (run_begin_ > q_tile) {
      --run_;
      load_run();
    }
  }

  __device__ __forceinline__ void load_run() {
    // A SemaphoreRun in one load: q_tile, value, component, is_last.
    const int4 run = __ldg(reinterpret_cast<const int4*>(params_.dq_order.runs + run_));
    run_begin_ = run.x;
    value_ = run.y;
    component_ = run.z;
    is_last_ = run.w != 0;
  }

  __device__ __forceinline__ void send(std::uint32_t step, const AddInfo& add) const {
    const RingPlace<kAddStages> place(step);
    shared_.add_ring.wait_empty(place);
    shared_.adds[place.stage()] = add;
    ptx::mbarrier_arrive(shared_.add_ring.full.at(place));
  }

  BackwardStorage<kC>& shared_;
  const BackwardParams& params_;
  std::int32_t record_ = -1;
  std::int32_t q_tile_ = 0;
  std::int32_t run_ = 0;
  std::int32_t run_begin_ = 0;
  std::int32_t value_ = 0;
  std::int32_t component_ = 0;
  std::int32_t num_components_ = 0;
  bool is_last_ = false;
};

/// The one thread that signals each semaphore when both warpgroups have added, or passes a complete
/// sum to the dQ converter. NOTE: the release waits for all earlier adds, so the waiter cannot do
/// this too.
template <BackwardConfig kC>
class DqSemaphoreSignaller {
 public:
  __device__ __forceinline__ DqSemaphoreSignaller(BackwardStorage<kC>& shared,
                                                  const BackwardParams& params)
      : shared_(shared), params_(params) {}

  __device__ __forceinline__ void run() {
    std::uint32_t step = 0;
    while (signal(step)) ++step;
    if constexpr (kC.has_converter()) send({.group = kEndOfConverts});
  }

 private:
  /// Returns false after the last step.
  __device__ __forceinline__ bool signal(std::uint32_t step) {
    const RingPlace<kAddStages> place(step);
    shared_.add_ring.wait_full(place);
    const AddInfo& add = shared_.adds[place.stage()];
    const std::int64_t semaphore = add.semaphore;
    if (semaphore == kEndOfAdds) return false;
    shared_.added.wait(place);
    const bool is_last = add.is_last != 0;
    if constexpr (kC.has_converter()) {
      if (is_last) {
        // Otherwise the converter's copies could overtake this multiprocessor's pending writes.
        ptx::fence_gpu();
        send({.group = add.group, .q_tile = add.q_tile});
      }
    }
    ptx::mbarrier_arrive(shared_.add_ring.empty.at(place));
    if (!is_last) ptx::signal_semaphore(params_.dq_order.semaphores + semaphore);
    return true;
  }

  __device__ __forceinline__ void send(const ConvertInfo& convert) {
    const RingPlace<kConvertStages> place(num_converts_);
    shared_.convert_ring.wait_empty(place);
    shared_.converts[place.stage()] = convert;
    ptx::mbarrier_arrive(shared_.convert_ring.full.at(place));
    ++num_converts_;
  }

  BackwardStorage<kC>& shared_;
  const BackwardParams& params_;
  std::uint32_t num_converts_ = 0;
};

}  // namespace magi::sm90
