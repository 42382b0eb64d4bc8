// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/backward/epilogue.cuh"
#include "kernels/sm90/backward/params.hpp"
#include "kernels/sm90/backward/scores.cuh"
#include "kernels/sm90/backward/shared.cuh"
#include "kernels/tile/gemm.cuh"

namespace magi::sm90 {

/// A consumer warpgroup's access to steps: products, and arithmetic on its scores for kernels that
/// ask at run time whether scores have a softcap.
template <BackwardConfig kC>
class StepView {
 public:
  using Scores = float[kC.rows / 2];                ///< a thread's
  using PackedScores = std::uint32_t[kC.rows / 4];  ///< likewise, as A operand
  using Rows = RowValues<kC.rows / 2>;
  using QPlace = RingPlace<kC.q_stages>;
  using DoutPlace = RingPlace<kC.dout_stages>;

  __device__ __forceinline__ StepView(BackwardStorage<kC>& shared, const BackwardParams& params)
      : shared_(shared), params_(params) {}

  __device__ __forceinline__ const StepInfo& info(std::uint32_t step) const {
    return shared_.steps[RingPlace<kC.step_stages()>(step).stage()];
  }
  __device__ __forceinline__ int flags(std::uint32_t step) const {
    return ptx::uniform(info(step).flags);
  }

  __device__ __forceinline__ void wait_queries(std::uint32_t step) const {
    shared_.q_ring.wait_full(QPlace(step));
  }
  __device__ __forceinline__ void release_queries(std::uint32_t step) const {
    arrive_warp(shared_.q_ring.empty.at(QPlace(step)));
  }
  __device__ __forceinline__ void wait_dout(std::uint32_t step) const {
    shared_.dout_ring.wait_full(DoutPlace(step));
  }
  __device__ __forceinline__ void release_dout(std::uint32_t step) const {
    arrive_warp(shared_.dout_ring.empty.at(DoutPlace(step)));
  }

  __device__ __forceinline__ std::uint8_t* queries(std::uint32_t step) const {
    return shared_.q[QPlace(step).stage()];
  }
  __device__ __forceinline__ std::uint8_t* dout(std::uint32_t step) const {
    return shared_.dout[DoutPlace(step).stage()];
  }

  /// The thread's place in a fragment, computed at each use to hold no registers in between.
  __device__ __forceinline__ static tile::FragmentPlace place() {
    return tile::FragmentPlace(ptx::thread_index() & 127);
  }
  __device__ __forceinline__ bool has_softcap() const {
    return params_.softmax.score.cap_scale > 0.0f;
  }

  /// Issues S^T = K Q^T of a step, `k` the warpgroup's keys. Without a softcap S begins with
  /// lse_log2 of its rows.
  __device__ __forceinline__ void issue_scores(std::uint32_t step, const std::uint8_t* k,
                                               Scores& x) const {
    begin_product(lse_log2(step), has_softcap(), x);
    tile::issue_abt<kC.type, kC.rows, kC.dim_qk, true>(x, tile::KMajor<kC.keys>(k),
                                                       tile::KMajor<kC.rows>(queries(step)));
  }
  /// Issues dP^T - delta = V dO^T - delta of a step, `v` the warpgroup's keys.
  __device__ __forceinline__ void issue_dp(std::uint32_t step, const std::uint8_t* v,
                                           Scores& x) const {
    begin_product(shared_.delta[DoutPlace(step).stage()], false, x);
    tile::issue_abt<kC.type, kC.rows, kC.dim_v, true>(x, tile::KMajor<kC.keys>(v),
                                                      tile::KMajor<kC.rows>(dout(step)));
  }

  /// The lse_log2 of a step's rows, read before its scores can be issued.
  __device__ __forceinline__ Rows load_lse(std::uint32_t step) const {
    Rows rows;
    rows.load(lse_log2(step), place().column);
    return rows;
  }
  /// Issues S^T for kernels that know whether scores have a softcap. NOTE: `keys` is a function,
  /// called between the other reads: the order of reads decides which registers ptxas assigns.
  template <typename Keys>
  __device__ __forceinline__ void issue_scores(std::uint32_t step, const Keys& keys,
                                               const Rows& lse_log2, Scores& x) const {
    if constexpr (kC.has_softcap) {
      ptx::undefine(x);
    } else {
      lse_log2.spread(x);
      ptx::pin(x);
    }
    const tile::KMajor<kC.keys> k(keys());
    const tile::KMajor<kC.rows> q(queries(step));
    ptx::wgmma_fence();
    tile::issue_abt<kC.type, kC.rows, kC.dim_qk, !kC.has_softcap>(x, k, q);
  }
  template <typename Keys>
  __device__ __forceinline__ void await_and_issue_dp(std::uint32_t step, const Keys& keys,
                                                     Scores& x) const {
    wait_dout(step);
    Rows delta;
    delta.load(shared_.delta[DoutPlace(step).stage()], place().column);
    const tile::KMajor<kC.keys> v(keys());
    const tile::KMajor<kC.rows> rows(dout(step));
    delta.spread(x);
    ptx::pin(x);
    ptx::wgmma_fence();
    tile::issue_abt<kC.type, kC.rows, kC.dim_v, true>(x, v, rows);
  }
  /// Issues dV += P^T dO of a step.
  __device__ __forceinline__ void issue_dv(std::uint32_t step, PackedScores& p,
                                           float (&dv)[kC.dim_v / 2]) const {
    const tile::MnMajor<kC.rows> rows(dout(step));
    ptx::pin(p);
    ptx::pin(dv);
    ptx::wgmma_fence();
    tile::issue_accumulate<kC.type, kC.dim_v, kC.rows>(dv, p, rows);
  }
  /// Issues dK += dS^T Q of a step.
  __device__ __forceinline__ void issue_dk(std::uint32_t step, PackedScores& score_gradients,
                                           float (&dk)[kC.dim_qk / 2]) const {
    const tile::MnMajor<kC.rows> q(queries(step));
    ptx::pin(dk);
    ptx::wgmma_fence();
    tile::issue_accumulate<kC.type, kC.dim_qk, kC.rows>(dk, score_gradients, q);
  }

  /// Issues S^T without lse_log2; issue_plain_dp issues dP^T without -delta.
  __device__ __forceinline__ void issue_plain_scores(std::uint32_t step, const std::uint8_t* k,
                                                     Scores& x) const {
    ptx::undefine(x);
    ptx::wgmma_fence();
    tile::issue_abt<kC.type, kC.rows, kC.dim_qk>(x, tile::KMajor<kC.keys>(k),
                                                 tile::KMajor<kC.rows>(queries(step)));
  }
  __device__ __forceinline__ void issue_plain_dp(std::uint32_t step, const std::uint8_t* v,
                                                 Scores& x) const {
    ptx::undefine(x);
    ptx::wgmma_fence();
    tile::issue_abt<kC.type, kC.rows, kC.dim_v>(x, tile::KMajor<kC.keys>(v),
                                                tile::KMajor<kC.rows>(dout(step)));
  }
  /// Adds lse_log2 to S; add_delta adds -delta to dP.
  __device__ __forceinline__ void add_lse(std::uint32_t step, Scores& x) const {
    add_rows(lse_log2(step), x);
  }
  __device__ __forceinline__ void add_delta(std::uint32_t step, Scores& x) const {
    add_rows(shared_.delta[DoutPlace(step).stage()], x);
  }
  /// Turns S of a plain product into P.
  __device__ __forceinline__ void exponentiate_plain(std::uint32_t step, int flags, int key_row,
                                                     Scores& x) const {
    if (!has_softcap()) add_lse(step, x);
    exponentiate(step, flags, key_row, x);
  }

  /// Turns S of a step into P; `key_row` is the row of the warpgroup's first key in the k tile.
  __device__ __forceinline__ void exponentiate(std::uint32_t step, int flags, int key_row,
                                               Scores& x) const {
    const tile::FragmentPlace at = place();
    const ScoreScale& scale = params_.softmax.score;
    if (has_softcap()) {
      take_exponents<true>(x, lse_log2(step), at.column, scale);
    } else {
      take_exponents<false>(x, lse_log2(step), at.column, scale);
    }
    if ((flags & kMasked) != 0) {
      mask_step(x, info(step), key_row + at.row, at.column, params_.query.packed_shift);
    }
    sm90::exponentiate(x);
  }
  /// Turns P of a step with a softcap into the weights of dS, P * f'(S) / softmax_scale.
  __device__ __forceinline__ void weigh(std::uint32_t step, Scores& x) const {
    Scores ones;
#pragma unroll
    for (float& one : ones) one = 1.0f;
    differentiate<true>(x, ones, lse_log2(step), place().column, params_.softmax.score);
  }
  /// Multiplies two scores by two packed weights.
  __device__ __forceinline__ static void multiply(Scores& x, int i, std::uint32_t weights) {
    const float2 pair = ptx::unpack_half2<kC.type>(weights);
    x[2 * i] *= pair.x;
    x[2 * i + 1] *= pair.y;
  }
  /// Turns dP - delta into dS / softmax_scale, packed. Without a softcap the weights are P.
  __device__ __forceinline__ static void differentiate_packed(Scores& x,
                                                              const PackedScores& weights,
                                                              PackedScores& packed) {
#pragma unroll
    for (int i = 0; i < kC.rows / 4; ++i) multiply(x, i, weights[i]);
    tile::pack_fragments<kC.type, kC.rows>(x, packed);
  }

  /// The address of the thread's first word in a buffer of scores, for keys from `key_row` on.
  __device__ __forceinline__ static std::uint32_t own_word(const std::uint8_t* buffer,
                                                           int key_row) {
    const tile::FragmentPlace at = place();
    return first_word(buffer, key_row + at.row, at.column);
  }
  __device__ __forceinline__ static void store(std::uint8_t* buffer, int key_row,
                                               const PackedScores& packed) {
    for_each_word<kC.keys, kC.rows / 4>(
        own_word(buffer, key_row),
        [&](int i, std::uint32_t address) { ptx::store_shared(address, packed[i]); });
    ptx::fence_async_shared();
  }
  __device__ __forceinline__ static void load(const std::uint8_t* buffer, int key_row,
                                              PackedScores& packed) {
    for_each_word<kC.keys, kC.rows / 4>(
        own_word(buffer, key_row),
        [&](int i, std::uint32_t address) { packed[i] = ptx::load_shared(address); });
  }

 private:
  __device__ __forceinline__ const float* lse_log2(std::uint32_t step) const {
    return shared_.lse_log2[QPlace(step).stage()];
  }
  __device__ __forceinline__ static void add_rows(const float* values, Scores& x) {
    values += place().column;
#pragma unroll
    for (int i = 0; i < kC.rows / 2; i += 4) {
      const float2 pair = *reinterpret_cast<const float2*>(values + 2 * i);
      x[i] += pair.x;
      x[i + 1] += pair.y;
      x[i + 2] += pair.x;
      x[i + 3] += pair.y;
    }
  }
  /// Sets the accumulators before a product: one value per row of q, or zeros.
  __device__ __forceinline__ static void begin_product(const float* values, bool is_zero,
                                                       Scores& x) {
    RowValues<kC.rows / 2> rows;
    rows.load(values, place().column);
    rows.spread(x);
    if (is_zero) {
#pragma unroll
      for (float& value : x) value = 0.0f;
    }
    ptx::pin(x);
    ptx::wgmma_fence();
  }

  BackwardStorage<kC>& shared_;
  const BackwardParams& params_;
};

/// A warpgroup's sums of an item.
template <BackwardConfig kC>
struct KeySums {
  float dk[kC.dk_columns() / 2];
  float dv[kC.dv_columns() / 2];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (float& x : dk) x = 0.0f;
#pragma unroll
    for (float& x : dv) x = 0.0f;
  }
};

/// Runs all items: walk(place of the item) adds all its steps to the sums. `warpgroup` is a
/// function that returns the warpgroup's number.
template <BackwardConfig kC, typename Warpgroup, typename Walk>
__device__ __forceinline__ void run_items(BackwardStorage<kC>& shared, const BackwardParams& params,
                                          Warpgroup warpgroup, KeySums<kC>& sums, Walk walk) {
  RingPlace<1> place;
  while (true) {
    shared.k_ring.wait_full(place);
    const ItemInfo& item = shared.items[place.parity()];
    const int flags = ptx::uniform(item.flags);
    if ((flags & kEndOfItems) != 0) break;
    sums.clear();
    if ((flags & kHasSteps) != 0) walk(place);
    arrive_warp(shared.k_ring.empty.at(place));
    shared.v_ring.wait_full(place);
    BackwardEpilogue<kC>(shared, params, warpgroup()).write(sums.dk, sums.dv, item);
    ptx::fence_async_shared();
    arrive_warp(shared.v_ring.empty.at(place));
    place.advance();
  }
}

}  // namespace magi::sm90
