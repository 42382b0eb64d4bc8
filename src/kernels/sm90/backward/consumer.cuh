// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/copy.cuh"
#include "kernels/sm90/backward/dq_sum.cuh"
#include "kernels/sm90/backward/epilogue.cuh"
#include "kernels/sm90/backward/params.hpp"
#include "kernels/sm90/backward/scores.cuh"
#include "kernels/sm90/backward/shared.cuh"
#include "kernels/tile/gemm.cuh"

namespace magi::sm90 {

/// One warpgroup: 64 keys of the k tile, their dK and dV in registers from the first to the last
/// step of an item. The next step's scores (not those of a wide tile) and the last step's dQ are
/// made during a step, so that each piece of arithmetic has products to run beside; the warpgroups
/// may be almost a step apart.
template <BackwardConfig kC>
class BackwardConsumer {
 public:
  __device__ __forceinline__ BackwardConsumer(BackwardStorage<kC>& shared,
                                              const BackwardParams& params, int warpgroup)
      : shared_(shared), params_(params), warpgroup_(warpgroup) {}

  __device__ __forceinline__ void run() {
    while (true) {
      ptx::mbarrier_wait(shared_.k_full, item_parity_);
      const int flags = ptx::uniform(shared_.items[item_parity_].flags);
      if ((flags & kEndOfItems) != 0) break;
      clear();
      if ((flags & kHasSteps) != 0) walk_item();
      release(shared_.k_empty);
      ptx::mbarrier_wait(shared_.v_full, item_parity_);
      BackwardEpilogue<kC>(shared_, params_, warpgroup_)
          .write(dk_, dv_, shared_.items[item_parity_]);
      ptx::fence_async_shared();
      release(shared_.v_empty);
      item_parity_ ^= 1;
    }
  }

 private:
  static constexpr bool kIsWide = kC.has_wide_tiles();
  static constexpr int kScoreElements = kC.rows / 2;
  using Scores = float[kScoreElements];
  using PackedScores = std::uint32_t[kScoreElements / 2];
  using Rows = RowValues<kScoreElements>;
  using DqColumns = float[kC.dq_columns() / 2];

  template <int kCount>
  __device__ __forceinline__ static DqColumns& dq_of(float (&x)[kCount]) {
    static_assert(sizeof(x) >= sizeof(DqColumns));
    return reinterpret_cast<DqColumns&>(x);
  }

  /// This warp's arrival, after all its lanes are done with what the barrier guards. NOTE:
  /// with a branch here the compiler takes the lanes for diverged ever after, and runs out of
  /// registers.
  __device__ __forceinline__ void release(ptx::Mbarrier& barrier) const {
    __syncwarp();
    ptx::mbarrier_arrive_if(barrier, ptx::kArrivalsPerWarp == 32 || threadIdx.x % 32 == 0);
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kC.dim_qk / 2; ++i) dk_[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < kC.dim_v / 2; ++i) dv_[i] = 0.0f;
  }

  /// Of a step whose queries are there.
  __device__ __forceinline__ int step_flags(std::uint32_t step) const {
    return ptx::uniform(shared_.steps[step % kInfoStages].flags);
  }

  __device__ __forceinline__ void walk_item() {
    if constexpr (kIsWide) {
      walk_wide_item();
    } else {
      walk_narrow_item();
    }
  }

  __device__ __forceinline__ void walk_narrow_item() {
    wait_queries(num_steps_);
    issue_scores(num_steps_, load_levels(num_steps_), even_);
    ptx::mbarrier_wait(shared_.v_full, item_parity_);
    ptx::wgmma_wait<0>();
    ptx::pin(even_);
    next_flags_ = step_flags(num_steps_);
    take_probabilities(num_steps_, even_);
    bool is_first = true;
    while (!run_step(is_first, even_, odd_)) is_first = false;
    finish_item(even_);
  }

  __device__ __forceinline__ void walk_wide_item() {
    ptx::mbarrier_wait(shared_.v_full, item_parity_);
    bool is_first = true;
    while (!run_wide_step(is_first)) is_first = false;
    DqColumns dq;
    finish_item(dq);
  }

  /// dQ of the last step, while its dK is being multiplied.
  template <int kCount>
  __device__ __forceinline__ void finish_item(float (&dq)[kCount]) {
    wait_scores(num_steps_ - 1);
    issue_dq(num_steps_ - 1, dq);
    ptx::wgmma_wait<0>();
    ptx::pin(packed_);
    ptx::pin(dk_);
    ptx::pin(dq_of(dq));
    const std::uint32_t step = num_steps_ - 1;
    add_queries(step, sum_of(step), await_turn(step), dq_of(dq));
  }

  __device__ __forceinline__ static int q_stage(std::uint32_t step) {
    return ring_stage<kC.q_stages>(step);
  }
  __device__ __forceinline__ int dout_stage() const {
    return ring_stage<kC.dout_stages>(num_steps_);
  }
  __device__ __forceinline__ void wait_queries(std::uint32_t step) {
    ptx::mbarrier_wait(shared_.q_full[q_stage(step)], ring_parity<kC.q_stages>(step));
  }

  /// dS of both warpgroups, and that both are done with the dQ of the step before.
  __device__ __forceinline__ void wait_scores(std::uint32_t step) {
    ptx::mbarrier_wait(shared_.scores_full[ring_stage<kScoreStages>(step)],
                       ring_parity<kScoreStages>(step));
  }

  /// Asked ahead, for the answer takes a while.
  __device__ __forceinline__ bool has_scores(std::uint32_t step) const {
    return __all_sync(0xffffffffu,
                      ptx::mbarrier_test(shared_.scores_full[ring_stage<kScoreStages>(step)],
                                         ring_parity<kScoreStages>(step))) != 0;
  }

  /// Where the warpgroup's keys begin in a panel. Found anew at each use: descriptors made of a
  /// value that the compiler knows to be constant would stay in registers.
  __device__ __forceinline__ static int key_bytes() {
    return (ptx::uniform(ptx::thread_index() >> 7) - 1) * (64 * tile::kPanelRowBytes);
  }

  /// S^T = K Q^T of a step, issued only.
  __device__ __forceinline__ void issue_scores(std::uint32_t step, const Rows& levels,
                                               Scores& scores) {
    if constexpr (kC.has_softcap) {
      ptx::forget(scores);
    } else {
      levels.spread(scores);
      ptx::pin(scores);
    }
    const tile::KMajor<kC.keys> k(shared_.k + key_bytes());
    const tile::KMajor<kC.rows> q(shared_.q[q_stage(step)]);
    ptx::wgmma_fence();
    tile::issue_abt<kC.type, kC.rows, kC.dim_qk, !kC.has_softcap>(scores, k, q);
  }

  /// dP^T - delta = V dO^T - delta of the present step, issued only.
  __device__ __forceinline__ void issue_dp(Scores& dp) {
    const std::uint32_t parity = ring_parity<kC.dout_stages>(num_steps_);
    ptx::mbarrier_wait(shared_.dout_full[dout_stage()], parity);
    Rows offsets;
    offsets.load(shared_.offsets[dout_stage()], place().column);
    const tile::KMajor<kC.keys> v(shared_.v + key_bytes());
    const tile::KMajor<kC.rows> dout(shared_.dout[dout_stage()]);
    offsets.spread(dp);
    ptx::pin(dp);
    ptx::wgmma_fence();
    tile::issue_abt<kC.type, kC.rows, kC.dim_v, true>(dp, v, dout);
  }

  __device__ __forceinline__ Rows load_levels(std::uint32_t step) const {
    Rows levels;
    levels.load(shared_.levels[q_stage(step)], place().column);
    return levels;
  }

  /// dV += P^T dO.
  __device__ __forceinline__ void issue_dv(PackedScores& probabilities) {
    const tile::MnMajor<kC.rows> dout(shared_.dout[dout_stage()]);
    ptx::pin(probabilities);
    ptx::pin(dv_);
    ptx::wgmma_fence();
    tile::issue_accumulate<kC.type, kC.dim_v, kC.rows>(dv_, probabilities, dout);
  }

  /// dQ = dS K of a step, this warpgroup's columns or, of a wide tile, rows.
  template <int kCount>
  __device__ __forceinline__ void issue_dq(std::uint32_t step, float (&to)[kCount]) {
    constexpr int kBytes = kC.dq_columns() * 2;
    constexpr int kPanel = kC.keys * tile::kPanelRowBytes;
    const int first = kIsWide ? 0 : warpgroup_ * kBytes;
    const int rows = kIsWide ? warpgroup_ * kPanel : 0;
    const tile::MnMajor<kC.keys> scores(shared_.scores[ring_stage<kScoreStages>(step)] + rows);
    const tile::MnMajor<kC.keys> k(shared_.k + first / tile::kPanelRowBytes * kPanel +
                                   first % tile::kPanelRowBytes);
    ptx::forget(to);
    ptx::wgmma_fence();
    tile::issue_atb<kC.type, kC.dq_columns(), kC.keys>(dq_of(to), scores, k);
  }

  /// dK += dS^T Q.
  __device__ __forceinline__ void issue_dk() {
    const tile::MnMajor<kC.rows> q(shared_.q[q_stage(num_steps_)]);
    ptx::pin(dk_);
    ptx::wgmma_fence();
    tile::issue_accumulate<kC.type, kC.dim_qk, kC.rows>(dk_, packed_, q);
  }

  /// S of a step with next_flags_ becomes P = 2^(exponent_scale * (f(S) + level)).
  __device__ __forceinline__ void take_probabilities(std::uint32_t step, Scores& x) {
    take_exponents<kC.has_softcap>(x, shared_.levels[q_stage(step)], place().column, params_.score);
    if ((next_flags_ & kMasked) != 0) mask(x, step);
    exponentiate(x);
    ptx::pin(x);
  }

  /// Whose scores are made during a step. After the last step of an item nobody has waited for the
  /// queries, and what is made of them is dropped: in builds for racecheck it is made of the
  /// present step's, which would cost registers in others.
  __device__ __forceinline__ std::uint32_t next_step(bool is_last) const {
    return num_steps_ + (ptx::kArrivalsPerWarp == 32 && is_last ? 0 : 1);
  }

  /// On entry the step's P is there and dK of the step before is being multiplied. The products
  /// follow each other in the order dP, dV, S of the next step, dQ of the step before, dK. dQ
  /// leaves before the next step's exponentials are taken: its registers are read while they are.
  /// On exit the next step's P is in `p`. True after the last step of the item.
  __device__ __forceinline__ bool run_step(bool is_first, Scores& p, Scores& other) {
    const bool is_last = (next_flags_ & kLastStep) != 0;
    issue_dp(other);
    ptx::wgmma_wait<1>();
    ptx::pin(packed_);
    ptx::pin(dk_);
    if (num_steps_ > 0) release(shared_.q_empty[q_stage(num_steps_ - 1)]);
    tile::pack_fragments<kC.type, kC.rows>(p, packed_);
    issue_dv(packed_);
    if (!is_last) wait_queries(num_steps_ + 1);
    const std::uint32_t next = next_step(is_last);
    const Rows levels = load_levels(next);
    ptx::wgmma_wait<1>();
    ptx::pin(other);
    differentiate<kC.has_softcap>(p, other, shared_.levels[q_stage(num_steps_)], place().column,
                                  params_.score);
    ptx::pin(p);
    next_flags_ = step_flags(next);
    issue_scores(next, levels, other);
    const bool are_scores_there = has_scores(num_steps_ - 1);
    ptx::wgmma_wait<1>();
    ptx::pin(packed_);
    ptx::pin(dv_);
    release(shared_.dout_empty[dout_stage()]);
    tile::pack_fragments<kC.type, kC.rows>(p, packed_);
    ptx::pin(packed_);
    if (!is_first && !are_scores_there) wait_scores(num_steps_ - 1);
    store_scores();
    issue_dq(num_steps_ - 1, p);
    issue_dk();
    const std::int32_t sum = sum_of(num_steps_ - 1);
    const bool is_first_turn = !is_first && await_turn(num_steps_ - 1);
    ptx::wgmma_wait<1>();
    ptx::pin(other);
    ptx::pin(dq_of(p));
    release(shared_.scores_full[ring_stage<kScoreStages>(num_steps_)]);
    if (!is_first) add_queries(num_steps_ - 1, sum, is_first_turn, dq_of(p));
    if (!is_last) take_probabilities(num_steps_ + 1, other);
#pragma unroll
    for (int i = 0; i < kScoreElements; ++i) p[i] = other[i];
    ptx::pin(p);
    ++num_steps_;
    return is_last;
  }

  /// A step of a wide tile. On entry dK of the step before is being multiplied. The products follow
  /// each other in the order S, dP, dV, dQ of the step before, dK. Two arrays of scores are all
  /// that there is room for, so each step makes its own S; dQ takes the registers of one of them.
  /// NOTE: dK of the step before is awaited first, or the compiler does so later, where it costs
  /// more.
  __device__ __forceinline__ bool run_wide_step(bool is_first) {
    wait_queries(num_steps_);
    next_flags_ = step_flags(num_steps_);
    const Rows levels = load_levels(num_steps_);
    ptx::wgmma_wait<0>();
    ptx::pin(packed_);
    ptx::pin(dk_);
    issue_scores(num_steps_, levels, even_);
    if (num_steps_ > 0) release(shared_.q_empty[q_stage(num_steps_ - 1)]);
    issue_dp(odd_);
    const bool are_scores_there = has_scores(num_steps_ - 1);
    ptx::wgmma_wait<1>();
    ptx::pin(even_);
    take_probabilities(num_steps_, even_);
    tile::pack_fragments<kC.type, kC.rows>(even_, probabilities_);
    issue_dv(probabilities_);
    ptx::wgmma_wait<1>();
    ptx::pin(odd_);
    differentiate_wide<kC.type, kC.has_softcap>(even_, probabilities_, odd_,
                                                shared_.levels[q_stage(num_steps_)], place().column,
                                                params_.score);
    tile::pack_fragments<kC.type, kC.rows>(odd_, packed_);
    ptx::pin(packed_);
    if (!is_first && !are_scores_there) wait_scores(num_steps_ - 1);
    DqColumns dq;
    issue_dq(num_steps_ - 1, dq);
    issue_dk();
    store_scores();
    const std::int32_t sum = sum_of(num_steps_ - 1);
    const bool is_first_turn = !is_first && await_turn(num_steps_ - 1);
    ptx::wgmma_wait<1>();
    ptx::pin(probabilities_);
    ptx::pin(dv_);
    ptx::pin(dq);
    release(shared_.dout_empty[dout_stage()]);
    release(shared_.scores_full[ring_stage<kScoreStages>(num_steps_)]);
    if (!is_first) add_queries(num_steps_ - 1, sum, is_first_turn, dq);
    ++num_steps_;
    return (next_flags_ & kLastStep) != 0;
  }

  /// Made anew at each use: it costs no registers in between.
  __device__ __forceinline__ static tile::FragmentPlace place() {
    return tile::FragmentPlace(ptx::thread_index() & 127);
  }

  __device__ __forceinline__ void mask(Scores& x, std::uint32_t step) const {
    const tile::FragmentPlace at = place();
    mask_step(x, shared_.steps[step % kInfoStages], 64 * warpgroup_ + at.row, at.column,
              params_.packed_shift);
  }

  /// dS^T into shared memory: panels of 64 rows of q, in them 128-byte rows, one per key.
  __device__ __forceinline__ void store_scores() {
    const tile::FragmentPlace at = place();
    std::uint8_t* first = shared_.scores[ring_stage<kScoreStages>(num_steps_)] +
                          tile::swizzled_offset(64 * warpgroup_ + at.row, 0) + 2 * at.column;
    const std::uint32_t base = ptx::shared_address(first);
    constexpr int kPanel = kC.keys * tile::kPanelRowBytes;
#pragma unroll
    for (int c = 0; c < kC.rows / 8; ++c) {
      // The swizzle is an exclusive or.
      const std::uint32_t address = (base ^ static_cast<std::uint32_t>(c % 8 << 4)) +
                                    static_cast<std::uint32_t>(c / 8 * kPanel);
      ptx::store_shared(address, packed_[2 * c]);
      ptx::store_shared(address + 8 * tile::kPanelRowBytes, packed_[2 * c + 1]);
    }
    ptx::fence_async_shared();
  }

  __device__ __forceinline__ std::int32_t sum_of(std::uint32_t step) const {
    return shared_.steps[step % kInfoStages].sum;
  }

  /// Whether the step is the first to add to its sum, which holds nothing yet.
  __device__ __forceinline__ bool await_turn(std::uint32_t step) const {
    if constexpr (!kC.is_ordered) return false;
    const int stage = ring_stage<kTurnStages>(step);
    ptx::mbarrier_wait(shared_.turn_ready[stage], ring_parity<kTurnStages>(step));
    return ptx::uniform(shared_.turns[stage].is_first) != 0;
  }

  /// dQ of a step to its sum, the turn having come where sums are ordered.
  __device__ __forceinline__ void add_queries(std::uint32_t step, std::int64_t sum, bool is_first,
                                              const DqColumns& dq) const {
    const int thread = ptx::thread_index() & 127;
    float* target = params_.dq_sums + sum * (kC.rows * kC.dim_qk) + warpgroup_ * kC.dq_floats() +
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
    if constexpr (kC.is_ordered) release(shared_.added[ring_stage<kTurnStages>(step)]);
  }

  BackwardStorage<kC>& shared_;
  const BackwardParams& params_;
  const int warpgroup_;
  std::uint32_t num_steps_ = 0;
  std::uint32_t item_parity_ = 0;
  int next_flags_ = 0;  ///< of the step whose scores are being made
  float dk_[kC.dim_qk / 2];
  float dv_[kC.dim_v / 2];
  Scores even_;
  Scores odd_;
  PackedScores probabilities_;  ///< P^T as A operand, only of wide tiles
  PackedScores packed_;         ///< P^T, then dS^T, as A operand; of wide tiles dS^T alone
};

}  // namespace magi::sm90
