// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/copy.cuh"
#include "kernels/sm90/backward/dq_sum.cuh"
#include "kernels/sm90/backward/epilogue.cuh"
#include "kernels/sm90/backward/params.hpp"
#include "kernels/sm90/backward/scores.cuh"
#include "kernels/sm90/backward/shared.cuh"
#include "kernels/tile/gemm.cuh"

// A step where a k tile has 64 keys that both warpgroups share: dK and dV of 64 keys are all that
// the registers of both hold. Each has half of the columns of dK, dV and dQ. One makes P for both,
// the other dS; they pass them on in shared memory, in 16 bits:
//
//   warpgroup          makes   sums, half of the columns of each
//   0, Probabilities   P^T     dV += P^T dO (P^T from registers), dK += dS^T Q, dQ = dS K
//   1, Gradients       dS^T    dV += P^T dO, dK += dS^T Q, dQ = dS K
//
// P of a step is made during the step before, so that neither waits for the other for long. With a
// softcap, dS is made of the weights P * f'(S). These lie in the second buffer of P, which then has
// one of each, and P of a step waits for dS of the step before.
//
// Why buffers are free when they are written again:
// - P(n + 2) comes after dS(n) has been awaited, and that after P(n) has been read.
// - dS(n + 2) comes after P(n + 2) has been awaited, and that after dK(n) and dQ(n) of the
//   warpgroup that makes P; the other one has ended its own.
// - V's buffer takes dK and dV when dS of the last step has been awaited.
namespace magi::sm90 {

/// What a warpgroup makes for both.
enum class ScoreRole : std::uint8_t { Probabilities, Gradients };

template <BackwardConfig kC, ScoreRole kRole>
class SharedKeysConsumer {
 public:
  __device__ __forceinline__ SharedKeysConsumer(BackwardStorage<kC>& shared,
                                                const BackwardParams& params)
      : shared_(shared), params_(params) {}

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
      BackwardEpilogue<kC>(shared_, params_, kWarpgroup).write(dk_, dv_, item);
      ptx::fence_async_shared();
      arrive_warp(shared_.v_ring.empty.at(item_));
      item_.advance();
    }
  }

 private:
  static constexpr bool kMakesP = kRole == ScoreRole::Probabilities;
  static constexpr int kWarpgroup = kMakesP ? 0 : 1;
  static constexpr int kPanel = 64 * tile::kPanelRowBytes;  ///< bytes of 64 columns of 64 rows
  static_assert(kC.rows == 64 && kC.keys == 64 && kC.dim_qk == kC.dim_v);
  /// Bytes to the warpgroup's columns in a tile of K, Q or dO.
  static constexpr int kColumnBytes =
      kWarpgroup * (kC.dk_columns() / tile::kPanelElements) * kPanel;
  using Scores = float[kC.rows / 2];
  using PackedScores = std::uint32_t[kC.rows / 4];
  using Dq = float[kC.dq_columns() / 2];

  using QPlace = RingPlace<kC.q_stages>;
  using DoutPlace = RingPlace<kC.dout_stages>;
  using ScorePlace = RingPlace<kC.score_stages>;

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (float& x : dk_) x = 0.0f;
#pragma unroll
    for (float& x : dv_) x = 0.0f;
  }

  __device__ __forceinline__ const StepInfo& step_info(std::uint32_t step) const {
    return shared_.steps[RingPlace<kStepStages>(step).stage()];
  }
  __device__ __forceinline__ int step_flags(std::uint32_t step) const {
    return ptx::uniform(step_info(step).flags);
  }
  /// Waits for the queries of a step and reads its flags.
  __device__ __forceinline__ void begin_step(std::uint32_t step) {
    shared_.q_ring.wait_full(QPlace(step));
    flags_ = step_flags(step);
  }
  __device__ __forceinline__ void release_queries(std::uint32_t step) const {
    arrive_warp(shared_.q_ring.empty.at(QPlace(step)));
  }
  __device__ __forceinline__ void release_dout(std::uint32_t step) const {
    arrive_warp(shared_.dout_ring.empty.at(DoutPlace(step)));
  }
  /// The thread's place in a fragment, made anew at each use: it costs no registers in between.
  __device__ __forceinline__ static tile::FragmentPlace place() {
    return tile::FragmentPlace(ptx::thread_index() & 127);
  }

  __device__ __forceinline__ bool has_softcap() const {
    return kC.has_softcap && params_.softmax.score.cap_scale > 0.0f;
  }
  /// The buffer of P of a step. With a softcap it is always the first; weights have the second.
  __device__ __forceinline__ std::uint8_t* probabilities(std::uint32_t step) const {
    return shared_.scores[kC.score_stages + (has_softcap() ? 0 : ScorePlace(step).stage())];
  }
  __device__ __forceinline__ std::uint8_t* weights(std::uint32_t step) const {
    return has_softcap() ? shared_.scores[kC.score_stages + 1] : probabilities(step);
  }
  __device__ __forceinline__ std::uint8_t* score_gradients(std::uint32_t step) const {
    return shared_.scores[ScorePlace(step).stage()];
  }

  __device__ __forceinline__ void walk_item() {
    begin_item();
    bool is_first = true;
    while (!run_step(is_first)) is_first = false;
    ptx::wgmma_wait<0>();
    ptx::pin(dk_);
    release_queries(num_steps_ - 1);
  }

  __device__ __forceinline__ void begin_item() {
    if constexpr (kMakesP) {
      begin_step(num_steps_);
      issue_scores(num_steps_);
      ptx::wgmma_wait<0>();
      ptx::pin(x_);
      make_probabilities(num_steps_, false);
    } else {
      shared_.v_ring.wait_full(item_);
    }
  }

  __device__ __forceinline__ bool run_step(bool is_first) {
    if constexpr (kMakesP) return run_probabilities_step(is_first);
    return run_gradients_step(is_first);
  }

  /// The step whose scores are made during the present one. After the last step of an item nobody
  /// has waited for the queries, and what is made of them is dropped: in builds for racecheck it is
  /// made of the present step's.
  __device__ __forceinline__ std::uint32_t next_step(bool is_last) const {
    return num_steps_ + (ptx::kArrivalsPerWarp == 32 && is_last ? 0 : 1);
  }

  /// One step n of the warpgroup that makes P. True after the last step of the item.
  ///
  /// | issue  | awaits         | in flight | then                                |
  /// |--------|----------------|-----------|-------------------------------------|
  /// | dV(n)  | dout full, n   | dK, dV    | wait dK(n-1); hand Q(n-1) back      |
  /// | S(n+1) | q full, n + 1  | dV, S     | wait both; hand dO(n) back; P(n+1)  |
  /// | dQ(n)  | scores full, n | dQ        |                                     |
  /// | dK(n)  |                | dQ, dK    | wait dQ; it leaves                  |
  __device__ __forceinline__ bool run_probabilities_step(bool is_first) {
    const std::uint32_t step = num_steps_;
    const bool is_last = (flags_ & kLastStep) != 0;
    shared_.dout_ring.wait_full(DoutPlace(step));
    ptx::pin(packed_);
    ptx::pin(dv_);
    ptx::wgmma_fence();
    tile::issue_accumulate<kC.type, kC.dv_columns(), kC.rows>(dv_, packed_, dout_columns(step));
    ptx::wgmma_wait<1>();
    ptx::pin(dk_);
    if (!is_first) release_queries(step - 1);
    const std::uint32_t next = next_step(is_last);
    if (!is_last) shared_.q_ring.wait_full(QPlace(next));
    issue_scores(next);
    flags_ = step_flags(next);
    ptx::wgmma_wait<0>();
    ptx::pin(packed_);
    ptx::pin(dv_);
    ptx::pin(x_);
    release_dout(step);
    if (!is_last) make_probabilities(next, has_softcap());
    shared_.scores_full.wait(ScorePlace(step));
    issue_dq(step);
    issue_dk(step);
    leave(step);
    ++num_steps_;
    return is_last;
  }

  /// One step n of the warpgroup that makes dS. True after the last step of the item.
  ///
  /// | issue | awaits               | in flight | then                              |
  /// |-------|----------------------|-----------|-----------------------------------|
  /// | dV(n) | P full, dout full, n | dK, dV    | wait dK(n-1); hand Q(n-1) back    |
  /// | dP(n) |                      | dV, dP    | wait both; hand dO(n) back; dS(n) |
  /// | dQ(n) | scores full, n       | dQ        |                                   |
  /// | dK(n) |                      | dQ, dK    | wait dQ; it leaves                |
  __device__ __forceinline__ bool run_gradients_step(bool is_first) {
    const std::uint32_t step = num_steps_;
    begin_step(step);
    const bool is_last = (flags_ & kLastStep) != 0;
    shared_.probabilities_full.wait(ScorePlace(step));
    shared_.dout_ring.wait_full(DoutPlace(step));
    ptx::pin(dv_);
    ptx::wgmma_fence();
    tile::issue_add_ab<kC.type, kC.dv_columns(), kC.rows>(
        dv_, tile::KMajor<kC.keys>(probabilities(step)), dout_columns(step));
    ptx::wgmma_wait<1>();
    ptx::pin(dk_);
    if (!is_first) release_queries(step - 1);
    issue_dp(step);
    PackedScores p;
    for_each_word<kC.keys, kC.rows / 4>(own_word(weights(step)), [&](int i, std::uint32_t address) {
      p[i] = ptx::load_shared(address);
    });
    ptx::wgmma_wait<0>();
    ptx::pin(x_);
    ptx::pin(dv_);
    release_dout(step);
    multiply(p);
    tile::pack_fragments<kC.type, kC.rows>(x_, packed_);
    store(score_gradients(step), packed_);
    arrive_warp(shared_.scores_full.at(ScorePlace(step)));
    shared_.scores_full.wait(ScorePlace(step));
    issue_dq(step);
    issue_dk(step);
    leave(step);
    ++num_steps_;
    return is_last;
  }

  __device__ __forceinline__ tile::MnMajor<kC.rows> query_columns(std::uint32_t step) const {
    return tile::MnMajor<kC.rows>(shared_.q[QPlace(step).stage()] + kColumnBytes);
  }
  __device__ __forceinline__ tile::MnMajor<kC.rows> dout_columns(std::uint32_t step) const {
    return tile::MnMajor<kC.rows>(shared_.dout[DoutPlace(step).stage()] + kColumnBytes);
  }

  /// Issues S^T = K Q^T of a step. Without a softcap S begins with lse_log2 of its rows.
  __device__ __forceinline__ void issue_scores(std::uint32_t step) {
    const std::uint32_t stage = QPlace(step).stage();
    begin_product(shared_.lse_log2[stage], has_softcap());
    const tile::KMajor<kC.keys> k(shared_.k);
    const tile::KMajor<kC.rows> q(shared_.q[stage]);
    tile::issue_abt<kC.type, kC.rows, kC.dim_qk, true>(x_, k, q);
  }
  /// Issues dP^T - delta = V dO^T - delta of a step.
  __device__ __forceinline__ void issue_dp(std::uint32_t step) {
    const std::uint32_t stage = DoutPlace(step).stage();
    begin_product(shared_.delta[stage], false);
    const tile::KMajor<kC.keys> v(shared_.v);
    const tile::KMajor<kC.rows> dout(shared_.dout[stage]);
    tile::issue_abt<kC.type, kC.rows, kC.dim_v, true>(x_, v, dout);
  }
  /// Sets what a product is added to: one value per row of q, or zeros.
  __device__ __forceinline__ void begin_product(const float* values, bool is_zero) {
    RowValues<kC.rows / 2> rows;
    rows.load(values, place().column);
    rows.spread(x_);
    if (is_zero) {
#pragma unroll
      for (float& x : x_) x = 0.0f;
    }
    ptx::pin(x_);
    ptx::wgmma_fence();
  }

  /// Issues dQ = dS K of a step.
  __device__ __forceinline__ void issue_dq(std::uint32_t step) {
    const tile::MnMajor<kC.keys> scores(score_gradients(step));
    const tile::MnMajor<kC.keys> k(shared_.k + kColumnBytes);
    ptx::forget(dq_);
    ptx::wgmma_fence();
    tile::issue_atb<kC.type, kC.dq_columns(), kC.keys>(dq_, scores, k);
  }

  /// Issues dK += dS^T Q of a step.
  __device__ __forceinline__ void issue_dk(std::uint32_t step) {
    ptx::pin(dk_);
    ptx::wgmma_fence();
    tile::issue_add_ab<kC.type, kC.dk_columns(), kC.rows>(
        dk_, tile::KMajor<kC.keys>(score_gradients(step)), query_columns(step));
  }

  /// Adds dQ of a step while its dK is being multiplied.
  __device__ __forceinline__ void leave(std::uint32_t step) {
    const std::int32_t sum = step_info(step).sum;
    const bool is_first_add = wait_to_add(shared_, step);
    ptx::wgmma_wait<1>();
    ptx::pin(dq_);
    add_dq(shared_, params_, kWarpgroup, step, sum, is_first_add, dq_);
  }

  /// Turns S of a step with flags_ into P, packed and in shared memory, and with a softcap into
  /// weights; `has_readers`: the step before may still be reading.
  __device__ __forceinline__ void make_probabilities(std::uint32_t step, bool has_readers) {
    const tile::FragmentPlace at = place();
    const float* lse_log2 = shared_.lse_log2[QPlace(step).stage()];
    const ScoreScale& scale = params_.softmax.score;
    if (has_softcap()) {
      take_exponents<true>(x_, lse_log2, at.column, scale);
    } else {
      take_exponents<false>(x_, lse_log2, at.column, scale);
    }
    if ((flags_ & kMasked) != 0) {
      mask_step(x_, step_info(step), at.row, at.column, params_.query.packed_shift);
    }
    exponentiate(x_);
    tile::pack_fragments<kC.type, kC.rows>(x_, packed_);
    ptx::pin(packed_);
    if (has_readers) shared_.scores_full.wait(ScorePlace(step - 1));
    store(probabilities(step), packed_);
    if (has_softcap()) store_weights(lse_log2, at.column, step);
    arrive_warp(shared_.probabilities_full.at(ScorePlace(step)));
  }

  /// Stores P * f'(S) / softmax_scale.
  __device__ __forceinline__ void store_weights(const float* lse_log2, int first_column,
                                                std::uint32_t step) {
    Scores ones;
#pragma unroll
    for (float& one : ones) one = 1.0f;
    differentiate<true>(x_, ones, lse_log2, first_column, params_.softmax.score);
    PackedScores packed;
    tile::pack_fragments<kC.type, kC.rows>(x_, packed);
    store(weights(step), packed);
  }

  /// The thread's first word in a buffer of scores.
  __device__ __forceinline__ static std::uint32_t own_word(const std::uint8_t* buffer) {
    const tile::FragmentPlace at = place();
    return first_word(buffer, at.row, at.column);
  }
  __device__ __forceinline__ static void store(std::uint8_t* buffer, const PackedScores& packed) {
    for_each_word<kC.keys, kC.rows / 4>(own_word(buffer), [&](int i, std::uint32_t address) {
      ptx::store_shared(address, packed[i]);
    });
    ptx::fence_async_shared();
  }

  /// Turns dP - delta into dS / softmax_scale.
  __device__ __forceinline__ void multiply(const PackedScores& p) {
#pragma unroll
    for (int i = 0; i < kC.rows / 4; ++i) {
      const float2 pair = ptx::unpack_half2<kC.type>(p[i]);
      x_[2 * i] *= pair.x;
      x_[2 * i + 1] *= pair.y;
    }
  }

  BackwardStorage<kC>& shared_;
  const BackwardParams& params_;
  std::uint32_t num_steps_ = 0;
  RingPlace<1> item_;
  int flags_ = 0;  ///< of the step whose scores are being made
  float dk_[kC.dk_columns() / 2];
  float dv_[kC.dv_columns() / 2];
  Dq dq_;
  Scores x_;             ///< S^T and P^T, or dP^T and dS^T
  PackedScores packed_;  ///< P^T or dS^T as A operand
};

}  // namespace magi::sm90
