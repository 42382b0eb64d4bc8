// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/backward/dq_sum.cuh"
#include "kernels/sm90/backward/step_view.cuh"
#include "kernels/tile/gemm.cuh"

// A step where a k tile has 64 keys that both warpgroups share: dK and dV of 64 keys are all that
// the registers of both hold. Each has half of the columns of dK, dV and dQ. One makes P for both,
// the other dS; they pass them on in shared memory, in 16 bits:
//
//   warpgroup          makes   sums, half of the columns of each
//   0, Probabilities   P^T     dV += P^T dO (P^T from registers), dK += dS^T Q, dQ = dS K
//   1, Gradients       dS^T    dV += P^T dO, dK += dS^T Q, dQ = dS K
//
// A step of each ends with S, or dP, of the next one; dK runs while that becomes P. With a softcap
// dS is made of the weights P * f'(S). These lie in the second buffer of P, which then has one of
// each.
//
// Why buffers are free when they are written again:
// - P(n + 2) comes after dS(n + 1) has been awaited, and that after all of P(n) has been read.
// - dS(n + 2) comes after P(n + 2) has been awaited, and that after dK(n) and dQ(n) of the
//   warpgroup that makes P; the other one has ended its own.
// - V's buffer takes dK and dV when dS of the last step has been awaited; what is still made of it
//   then is dropped.
namespace magi::sm90 {

/// What a warpgroup makes for both.
enum class ScoreRole : std::uint8_t { Probabilities, Gradients };

template <BackwardConfig kC, ScoreRole kRole>
class SharedKeysConsumer {
 public:
  __device__ __forceinline__ SharedKeysConsumer(BackwardStorage<kC>& shared,
                                                const BackwardParams& params)
      : shared_(shared), params_(params), view_(shared, params) {}

  __device__ __forceinline__ void run() {
    run_items(
        shared_, params_, [] { return kWarpgroup; }, sums_,
        [&](RingPlace<1> item) { walk_item(item); });
  }

 private:
  static constexpr bool kMakesP = kRole == ScoreRole::Probabilities;
  static constexpr int kWarpgroup = kMakesP ? 0 : 1;
  static constexpr int kPanel = 64 * tile::kPanelRowBytes;  ///< bytes of 64 columns of 64 rows
  static_assert(kC.rows == 64 && kC.keys == 64 && kC.dim_qk == kC.dim_v);
  /// Bytes to the warpgroup's columns in a tile of K, Q or dO.
  static constexpr int kColumnBytes =
      kWarpgroup * (kC.dk_columns() / tile::kPanelElements) * kPanel;
  using ScorePlace = RingPlace<kC.score_stages>;

  /// The buffer of P of a step. With a softcap it is always the first; weights have the second.
  __device__ __forceinline__ std::uint8_t* probabilities(std::uint32_t step) const {
    return shared_.scores[kC.score_stages + (view_.has_softcap() ? 0 : ScorePlace(step).stage())];
  }
  __device__ __forceinline__ std::uint8_t* weights(std::uint32_t step) const {
    return view_.has_softcap() ? shared_.scores[kC.score_stages + 1] : probabilities(step);
  }
  __device__ __forceinline__ std::uint8_t* score_gradients(std::uint32_t step) const {
    return shared_.scores[ScorePlace(step).stage()];
  }

  __device__ __forceinline__ void walk_item(RingPlace<1> item) {
    if constexpr (!kMakesP) shared_.v_ring.wait_full(item);
    issue_product(num_steps_, true);
    ptx::wgmma_wait<0>();
    ptx::pin(x_);
    if constexpr (kMakesP) make_probabilities(num_steps_);
    bool is_first = true;
    while (!run_step(is_first)) is_first = false;
    ptx::wgmma_wait<0>();
    ptx::pin(sums_.dk);
    view_.release_queries(num_steps_ - 1);
  }

  /// Issues the product that the warpgroup makes scores of, S or dP, of a step.
  __device__ __forceinline__ void issue_product(std::uint32_t step, bool is_there) {
    if (is_there) view_.wait_queries(step);
    flags_ = view_.flags(step);
    if constexpr (kMakesP) {
      view_.issue_scores(step, shared_.k, x_);
    } else {
      if (is_there) view_.wait_dout(step);
      view_.issue_dp(step, shared_.v, x_);
    }
  }

  /// The step after the present one. After the last step of an item nobody has waited for its rows,
  /// and what is made of them is dropped: in builds for racecheck it is made of the present step's.
  __device__ __forceinline__ std::uint32_t next_step(bool is_last) const {
    return num_steps_ + (ptx::kArrivalsPerWarp == 32 && is_last ? 0 : 1);
  }

  /// One step n. True after the last step of the item.
  ///
  /// | issue           | awaits            | in flight   | then                                  |
  /// |-----------------|-------------------|-------------|---------------------------------------|
  /// | dV(n)           | dout or P full, n | dK, dV      | wait dK(n-1); hand Q(n-1) back; dS(n) |
  /// | dQ(n)           | scores full, n    | dV, dQ      | wait both; hand dO(n) back; dQ leaves |
  /// | S(n+1), dP(n+1) | q, dout full      | S, dP       |                                       |
  /// | dK(n)           |                   | S or dP, dK | wait S or dP; P(n+1)                  |
  __device__ __forceinline__ bool run_step(bool is_first) {
    const std::uint32_t step = num_steps_;
    const bool is_last = (flags_ & kLastStep) != 0;
    if constexpr (kMakesP) {
      add_own_dv(step);
    } else {
      add_dv(step);
    }
    ptx::wgmma_wait<1>();
    ptx::pin(sums_.dk);
    if (!is_first) view_.release_queries(step - 1);
    if constexpr (!kMakesP) make_score_gradients(step);
    shared_.scores_full.wait(ScorePlace(step));
    issue_dq(step);
    const std::int32_t sum = view_.info(step).sum;
    const bool is_first_add = wait_to_add(shared_, step);
    ptx::wgmma_wait<0>();
    ptx::pin(dq_);
    ptx::pin(sums_.dv);
    if constexpr (kMakesP) ptx::pin(packed_);
    if (ptx::kArrivalsPerWarp == 1 || !is_last) view_.release_dout(step);
    add_dq(shared_, params_, kWarpgroup, step, sum, is_first_add, dq_);
    const std::uint32_t next = next_step(is_last);
    issue_product(next, !is_last);
    issue_dk(step);
    ptx::wgmma_wait<1>();
    ptx::pin(x_);
    if (ptx::kArrivalsPerWarp != 1 && is_last) view_.release_dout(step);
    if constexpr (kMakesP) {
      if (!is_last) make_probabilities(next);
    }
    ++num_steps_;
    return is_last;
  }

  /// Issues dV += P^T dO of a step, P in registers.
  __device__ __forceinline__ void add_own_dv(std::uint32_t step) {
    view_.wait_dout(step);
    ptx::pin(packed_);
    ptx::pin(sums_.dv);
    ptx::wgmma_fence();
    tile::issue_accumulate<kC.type, kC.dv_columns(), kC.rows>(sums_.dv, packed_,
                                                              columns_of(view_.dout(step)));
  }
  /// Issues dV += P^T dO of a step, P in shared memory.
  __device__ __forceinline__ void add_dv(std::uint32_t step) {
    shared_.probabilities_full.wait(ScorePlace(step));
    ptx::pin(sums_.dv);
    ptx::wgmma_fence();
    tile::issue_add_ab<kC.type, kC.dv_columns(), kC.rows>(
        sums_.dv, tile::KMajor<kC.keys>(probabilities(step)), columns_of(view_.dout(step)));
  }

  /// Turns S of a step into P, packed and in shared memory, and with a softcap into weights.
  __device__ __forceinline__ void make_probabilities(std::uint32_t step) {
    view_.exponentiate(step, flags_, 0, x_);
    tile::pack_fragments<kC.type, kC.rows>(x_, packed_);
    ptx::pin(packed_);
    view_.store(probabilities(step), 0, packed_);
    if (view_.has_softcap()) {
      view_.weigh(step, x_);
      typename StepView<kC>::PackedScores packed;
      tile::pack_fragments<kC.type, kC.rows>(x_, packed);
      view_.store(weights(step), 0, packed);
    }
    arrive_warp(shared_.probabilities_full.at(ScorePlace(step)));
  }

  /// Turns dP of a step into dS in shared memory. NOTE: with a softcap P has one buffer, which is
  /// free when dS is there.
  __device__ __forceinline__ void make_score_gradients(std::uint32_t step) {
    typename StepView<kC>::PackedScores p;
    view_.load(weights(step), 0, p);
    view_.differentiate_packed(x_, p, packed_);
    view_.store(score_gradients(step), 0, packed_);
    if (view_.has_softcap()) ptx::wgmma_wait<0>();
    arrive_warp(shared_.scores_full.at(ScorePlace(step)));
  }

  /// The warpgroup's columns of a tile of Q or dO.
  __device__ __forceinline__ static tile::MnMajor<kC.rows> columns_of(const std::uint8_t* rows) {
    return tile::MnMajor<kC.rows>(rows + kColumnBytes);
  }

  /// Issues dQ = dS K of a step.
  __device__ __forceinline__ void issue_dq(std::uint32_t step) {
    ptx::forget(dq_);
    ptx::wgmma_fence();
    tile::issue_atb<kC.type, kC.dq_columns(), kC.keys>(
        dq_, tile::MnMajor<kC.keys>(score_gradients(step)),
        tile::MnMajor<kC.keys>(shared_.k + kColumnBytes));
  }
  /// Issues dK += dS^T Q of a step.
  __device__ __forceinline__ void issue_dk(std::uint32_t step) {
    ptx::pin(sums_.dk);
    ptx::wgmma_fence();
    tile::issue_add_ab<kC.type, kC.dk_columns(), kC.rows>(
        sums_.dk, tile::KMajor<kC.keys>(score_gradients(step)), columns_of(view_.queries(step)));
  }

  BackwardStorage<kC>& shared_;
  const BackwardParams& params_;
  const StepView<kC> view_;
  std::uint32_t num_steps_ = 0;
  int flags_ = 0;  ///< of the step whose scores are being made
  KeySums<kC> sums_;
  float dq_[kC.dq_columns() / 2];
  typename StepView<kC>::Scores x_;             ///< S^T and P^T, or dP^T and dS^T
  typename StepView<kC>::PackedScores packed_;  ///< P^T or dS^T as A operand
};

}  // namespace magi::sm90
