// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/backward/dq_sum.cuh"
#include "kernels/sm90/backward/step_view.cuh"
#include "kernels/tile/gemm.cuh"

namespace magi::sm90 {

/// One warpgroup: 64 keys of the k tile, with dK and dV in registers from the first to the last
/// step of an item. During a step it also computes the previous step's dQ and, but for wide tiles,
/// the next step's scores, so products run beside all other arithmetic. Warpgroups may be almost a
/// step apart.
template <BackwardConfig kC>
class BackwardConsumer {
 public:
  __device__ __forceinline__ BackwardConsumer(BackwardStorage<kC>& shared,
                                              const BackwardParams& params, int warpgroup)
      : shared_(shared), params_(params), view_(shared, params), warpgroup_(warpgroup) {}

  __device__ __forceinline__ void run() {
    while (true) {
      shared_.k_ring.wait_full(item_);
      const ItemInfo& item = shared_.items[item_.parity()];
      const int flags = ptx::uniform(item.flags);
      if ((flags & kEndOfItems) != 0) break;
      clear();
      if ((flags & kHasSteps) != 0) walk_item();
      arrive_warp(shared_.k_ring.empty.at(item_));
      shared_.v_ring.wait_full(item_);
      BackwardEpilogue<kC>(shared_, params_, warpgroup_).write(dk_, dv_, item);
      ptx::fence_async_shared();
      arrive_warp(shared_.v_ring.empty.at(item_));
      item_.advance();
    }
  }

 private:
  static constexpr bool kIsWide = kC.is(KernelForm::Wide);
  static constexpr int kScoreElements = kC.rows / 2;
  using Scores = float[kScoreElements];
  using PackedScores = std::uint32_t[kScoreElements / 2];
  using Rows = typename StepView<kC>::Rows;
  using DqColumns = float[kC.dq_columns() / 2];

  template <int kCount>
  __device__ __forceinline__ static DqColumns& dq_of(float (&x)[kCount]) {
    static_assert(sizeof(x) >= sizeof(DqColumns));
    return reinterpret_cast<DqColumns&>(x);
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kC.dim_qk / 2; ++i) dk_[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < kC.dim_v / 2; ++i) dv_[i] = 0.0f;
  }

  __device__ __forceinline__ void walk_item() {
    if constexpr (kIsWide) {
      walk_wide_item();
    } else {
      walk_narrow_item();
    }
  }

  __device__ __forceinline__ void walk_narrow_item() {
    view_.wait_queries(num_steps_);
    issue_scores(num_steps_, view_.load_lse(num_steps_), even_);
    shared_.v_ring.wait_full(item_);
    ptx::wgmma_wait<0>();
    ptx::pin(even_);
    next_flags_ = view_.flags(num_steps_);
    mask_and_exponentiate(num_steps_, even_);
    bool is_first = true;
    while (!run_step(is_first, even_, odd_)) is_first = false;
    finish_item(even_);
  }

  __device__ __forceinline__ void walk_wide_item() {
    shared_.v_ring.wait_full(item_);
    bool is_first = true;
    while (!run_wide_step(is_first)) is_first = false;
    DqColumns dq;
    finish_item(dq);
  }

  /// Computes and adds dQ of the last step, while its dK is being computed.
  template <int kCount>
  __device__ __forceinline__ void finish_item(float (&dq)[kCount]) {
    wait_score_gradients(num_steps_ - 1);
    issue_dq(num_steps_ - 1, dq);
    ptx::wgmma_wait<0>();
    ptx::pin(packed_);
    ptx::pin(dk_);
    ptx::pin(dq_of(dq));
    const std::uint32_t step = num_steps_ - 1;
    const bool is_first = wait_to_add(shared_, step);
    add_dq(shared_, params_, warpgroup_, step, view_.info(step).sum, is_first, dq_of(dq));
  }

  // The place of a step in the rings.
  using QPlace = RingPlace<kC.q_stages>;
  using ScorePlace = RingPlace<kC.score_stages>;

  /// Waits until both warpgroups have stored dS and completed the dQ of the step before.
  __device__ __forceinline__ void wait_score_gradients(std::uint32_t step) const {
    shared_.score_gradients_full.wait(ScorePlace(step));
  }
  /// Whether that wait would return at once; called ahead, because the test has latency.
  __device__ __forceinline__ bool has_score_gradients(std::uint32_t step) const {
    return __all_sync(0xffffffffu, shared_.score_gradients_full.test(ScorePlace(step))) != 0;
  }
  /// Signals that this warp has stored its dS and completed its dQ of the step before.
  __device__ __forceinline__ void arrive_score_gradients() const {
    arrive_warp(shared_.score_gradients_full.at(ScorePlace(num_steps_)));
  }

  /// The bytes to the warpgroup's keys in a panel. Computed at each use: if the compiler knew that
  /// the value is constant, it would keep descriptors made of it in registers.
  __device__ __forceinline__ static int key_bytes() {
    return (ptx::uniform(ptx::thread_index() >> 7) - 1) * (64 * tile::kPanelRowBytes);
  }

  /// Issues S^T of a step.
  __device__ __forceinline__ void issue_scores(std::uint32_t step, const Rows& lse_log2,
                                               Scores& scores) {
    view_.issue_scores(
        step, [this] { return shared_.k + key_bytes(); }, lse_log2, scores);
  }
  /// Issues dP^T - delta of the present step.
  __device__ __forceinline__ void issue_dp(Scores& dp) {
    view_.await_and_issue_dp(
        num_steps_, [this] { return shared_.v + key_bytes(); }, dp);
  }

  __device__ __forceinline__ const float* lse_of(std::uint32_t step) const {
    return shared_.lse_log2[QPlace(step).stage()];
  }

  /// Issues dQ = dS K of a step: this warpgroup's columns or, in a wide tile, its rows.
  template <int kCount>
  __device__ __forceinline__ void issue_dq(std::uint32_t step, float (&to)[kCount]) {
    constexpr int kBytes = kC.dq_columns() * 2;
    constexpr int kPanel = kC.keys * tile::kPanelRowBytes;
    const int first = kIsWide ? 0 : warpgroup_ * kBytes;
    const int rows = kIsWide ? warpgroup_ * kPanel : 0;
    const tile::MnMajor<kC.keys> score_gradients(shared_.scores[ScorePlace(step).stage()] + rows);
    const tile::MnMajor<kC.keys> k(shared_.k + first / tile::kPanelRowBytes * kPanel +
                                   first % tile::kPanelRowBytes);
    ptx::undefine(to);
    ptx::wgmma_fence();
    tile::issue_atb<kC.type, kC.dq_columns(), kC.keys>(dq_of(to), score_gradients, k);
  }

  /// Turns S of a step with next_flags_ into P = 2^(exponent_scale * (f(S) + lse_log2)).
  __device__ __forceinline__ void mask_and_exponentiate(std::uint32_t step, Scores& x) {
    take_exponents<kC.has_softcap>(x, lse_of(step), view_.place().column, params_.softmax.score);
    if ((next_flags_ & kMasked) != 0) mask(x, step);
    exponentiate(x);
    ptx::pin(x);
  }

  /// The step whose scores the present one computes. After the last step of an item nobody has
  /// waited for these queries, and the scores are discarded. Builds for racecheck use the present
  /// step's queries instead, which would cost registers in others.
  __device__ __forceinline__ std::uint32_t next_step(bool is_last) const {
    return num_steps_ + (ptx::kArrivalsPerWarp == 32 && is_last ? 0 : 1);
  }

  /// One step n. The products follow each other in the tensor cores' queue in the order dP(n),
  /// dV(n), S(n + 1), dQ(n - 1), dK(n); `p` holds P(n) on entry and P(n + 1) on exit. Returns true
  /// after the last step of the item.
  ///
  /// | issue   | awaits             | in flight | then                                         |
  /// |---------|--------------------|-----------|----------------------------------------------|
  /// |         |                    | dK(n-1)   | on entry: p = P(n)                           |
  /// | dP(n)   | dout full          | dK, dP    | wait dK(n-1); hand Q(n-1) back; packed = P   |
  /// | dV(n)   | q full, n + 1      | dP, dV    | wait dP in other; p = dS = P * (dP - delta)  |
  /// | S(n+1)  |                    | dV, S     | wait dV; hand dO(n) back; packed = dS        |
  /// |         | dS full, n - 1     | S         | dS to shared memory                          |
  /// | dQ(n-1) |                    | S, dQ     | dQ takes the registers of p                  |
  /// | dK(n)   | add full, n - 1    | S, dQ, dK | wait S in other, and dQ; arrive dS full      |
  /// |         |                    | dK        | dQ leaves p for its sum; p = P(n+1) of other |
  ///
  /// dK and dV stay in registers throughout. dQ is stored before the next exponentials, during
  /// which its registers are read. The other warpgroup's dS is awaited a step late.
  __device__ __forceinline__ bool run_step(bool is_first, Scores& p, Scores& other) {
    const bool is_last = (next_flags_ & kLastStep) != 0;
    // dP starts while dK of the step before runs. Then Q of that step is released and P packed.
    issue_dp(other);
    ptx::wgmma_wait<1>();
    ptx::pin(packed_);
    ptx::pin(dk_);
    if (num_steps_ > 0) view_.release_queries(num_steps_ - 1);
    tile::pack_fragments<kC.type, kC.rows>(p, packed_);
    // dV runs while dS is computed from dP.
    view_.issue_dv(num_steps_, packed_, dv_);
    if (!is_last) view_.wait_queries(num_steps_ + 1);
    const std::uint32_t next = next_step(is_last);
    const Rows lse_log2 = view_.load_lse(next);
    ptx::wgmma_wait<1>();
    ptx::pin(other);
    differentiate<kC.has_softcap>(p, other, lse_of(num_steps_), view_.place().column,
                                  params_.softmax.score);
    ptx::pin(p);
    next_flags_ = view_.flags(next);
    // S of the next step runs while dV ends and dS is stored in shared memory.
    issue_scores(next, lse_log2, other);
    const bool are_gradients_there = has_score_gradients(num_steps_ - 1);
    ptx::wgmma_wait<1>();
    ptx::pin(packed_);
    ptx::pin(dv_);
    view_.release_dout(num_steps_);
    tile::pack_fragments<kC.type, kC.rows>(p, packed_);
    ptx::pin(packed_);
    if (!is_first && !are_gradients_there) wait_score_gradients(num_steps_ - 1);
    store_score_gradients();
    // dQ of the step before reuses the registers of dS, which has been packed.
    issue_dq(num_steps_ - 1, p);
    view_.issue_dk(num_steps_, packed_, dk_);
    const std::int32_t sum = view_.info(num_steps_ - 1).sum;
    const bool is_first_add = !is_first && wait_to_add(shared_, num_steps_ - 1);
    ptx::wgmma_wait<1>();
    ptx::pin(other);
    ptx::pin(dq_of(p));
    arrive_score_gradients();
    // dK runs while dQ is added to its sum and P of the next step is computed.
    if (!is_first) {
      add_dq(shared_, params_, warpgroup_, num_steps_ - 1, sum, is_first_add, dq_of(p));
    }
    if (!is_last) mask_and_exponentiate(num_steps_ + 1, other);
#pragma unroll
    for (int i = 0; i < kScoreElements; ++i) p[i] = other[i];
    ptx::pin(p);
    ++num_steps_;
    return is_last;
  }

  /// One step n of a wide tile. Registers hold two arrays of scores only, so each step computes its
  /// own S, and dQ reuses one of the arrays. Returns true after the last step of the item.
  ///
  /// | issue   | awaits             | in flight  | then                                           |
  /// |---------|--------------------|------------|------------------------------------------------|
  /// |         | q full, n          | dK(n-1)    | on entry: wait dK(n-1)                         |
  /// | S(n)    |                    | S          | hand Q(n-1) back                               |
  /// | dP(n)   | dout full          | S, dP      | wait S; even = P, probabilities = P in 16 bits |
  /// | dV(n)   |                    | dP, dV     | wait dP; odd = dS = P * (dP - delta)           |
  /// | dQ(n-1) | dS full, n - 1     | dV, dQ     | packed = dS; dQ where P and dP have been       |
  /// | dK(n)   | add full, n - 1    | dV, dQ, dK | dS to shared memory; wait dV and dQ            |
  /// |         |                    | dK         | hand dO(n) back; arrive dS full; dQ leaves     |
  ///
  /// NOTE: dK of the step before is awaited first; ptxas would do so later, where it costs more.
  __device__ __forceinline__ bool run_wide_step(bool is_first) {
    view_.wait_queries(num_steps_);
    next_flags_ = view_.flags(num_steps_);
    const Rows lse_log2 = view_.load_lse(num_steps_);
    ptx::wgmma_wait<0>();
    ptx::pin(packed_);
    ptx::pin(dk_);
    issue_scores(num_steps_, lse_log2, even_);
    if (num_steps_ > 0) view_.release_queries(num_steps_ - 1);
    // dP runs while P is computed from S.
    issue_dp(odd_);
    const bool are_gradients_there = has_score_gradients(num_steps_ - 1);
    ptx::wgmma_wait<1>();
    ptx::pin(even_);
    mask_and_exponentiate(num_steps_, even_);
    tile::pack_fragments<kC.type, kC.rows>(even_, probabilities_);
    // dV runs while dS is computed from dP.
    view_.issue_dv(num_steps_, probabilities_, dv_);
    ptx::wgmma_wait<1>();
    ptx::pin(odd_);
    differentiate_wide<kC.type, kC.has_softcap>(even_, probabilities_, odd_, lse_of(num_steps_),
                                                view_.place().column, params_.softmax.score);
    tile::pack_fragments<kC.type, kC.rows>(odd_, packed_);
    ptx::pin(packed_);
    // dQ of the step before and dK run while dS is stored in shared memory.
    if (!is_first && !are_gradients_there) wait_score_gradients(num_steps_ - 1);
    DqColumns dq;
    issue_dq(num_steps_ - 1, dq);
    view_.issue_dk(num_steps_, packed_, dk_);
    store_score_gradients();
    const std::int32_t sum = view_.info(num_steps_ - 1).sum;
    const bool is_first_add = !is_first && wait_to_add(shared_, num_steps_ - 1);
    ptx::wgmma_wait<1>();
    ptx::pin(probabilities_);
    ptx::pin(dv_);
    ptx::pin(dq);
    view_.release_dout(num_steps_);
    arrive_score_gradients();
    // dK runs while dQ is added to its sum.
    if (!is_first) {
      add_dq(shared_, params_, warpgroup_, num_steps_ - 1, sum, is_first_add, dq);
    }
    ++num_steps_;
    return (next_flags_ & kLastStep) != 0;
  }

  __device__ __forceinline__ void mask(Scores& x, std::uint32_t step) const {
    const tile::FragmentPlace at = view_.place();
    mask_step(x, view_.info(step), 64 * warpgroup_ + at.row, at.column, params_.query.packed_shift);
  }

  /// Stores dS^T of the warpgroup's keys in shared memory.
  __device__ __forceinline__ void store_score_gradients() {
    const tile::FragmentPlace at = view_.place();
    const std::uint32_t first = first_word(shared_.scores[ScorePlace(num_steps_).stage()],
                                           64 * warpgroup_ + at.row, at.column);
    for_each_word<kC.keys, kScoreElements / 2>(
        first, [&](int i, std::uint32_t address) { ptx::store_shared(address, packed_[i]); });
    ptx::fence_async_shared();
  }

  BackwardStorage<kC>& shared_;
  const BackwardParams& params_;
  const StepView<kC> view_;
  const int warpgroup_;
  std::uint32_t num_steps_ = 0;
  RingPlace<1> item_;
  int next_flags_ = 0;  ///< flags of the step whose scores are being computed
  float dk_[kC.dim_qk / 2];
  float dv_[kC.dim_v / 2];
  Scores even_;
  Scores odd_;
  PackedScores probabilities_;  ///< P^T as A operand, only of wide tiles
  PackedScores packed_;         ///< P^T, then dS^T, as A operand; of wide tiles dS^T alone
};

}  // namespace magi::sm90
