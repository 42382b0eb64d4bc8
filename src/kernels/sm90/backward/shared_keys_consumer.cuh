// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/cluster.cuh"
#include "kernels/sm90/backward/dq_sum.cuh"
#include "kernels/sm90/backward/step_view.cuh"
#include "kernels/tile/gemm.cuh"

// The step for head dims at which dK and dV of 64 keys do not fit a warpgroup's registers: both
// warpgroups of a CTA share 64 keys, and two CTAs, a cluster, a k tile of 128.
//
// In a CTA each warpgroup has half of the columns of dK and dV. One computes P for both, the other
// dS; they exchange these in shared memory, in 16 bits:
//
//   warpgroup       computes   sums, half of the columns of each
//   0, Probabilities   P^T     dV += P^T dO (P^T from registers), dK += dS^T Q
//   1, Gradients       dS^T    dV += P^T dO, dK += dS^T Q
//
// Each CTA copies its dS to the other, and computes half of the columns of dQ over the keys of
// both. So a dQ sum gets one addition per 128 keys. Each warpgroup has a panel of 64 columns.
//
// Each warpgroup ends a step with the product S, or dP, of the next step. With a softcap, dS is
// computed from the weights P * f'(S). These use the second buffer of P.
//
// Why buffers are free when they are written again:
// - P(n + 2) is written after the wait for dS(n + 1), which comes after all reads of P(n).
// - dS(n + 2) is written after the wait for P(n + 2), which comes after dK(n) and dQ(n) of the
//   warpgroup that computes P; the other warpgroup has completed its own.
// - The other CTA sends its dS(n + 2) once it is stored. That comes after its wait for our
//   dS(n + 1), so after both warpgroups here have completed dQ(n): the one that computes P signals
//   P(n + 1) only then. Likewise the copy of dS(n) has been read.
// - The epilogue stages dK and dV in V's buffer after the wait for dS of the last step. The product
//   that still reads V then is discarded.
namespace magi::sm90 {

/// The scores that a warpgroup computes for both.
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
  static_assert(kC.rows == 64 && kC.keys == 64 && kC.dim_qk == kC.dim_v && kC.ctas() == 2);
  static_assert(kC.dq_columns() == kC.consumers * tile::kPanelElements && kC.dout_stages == 1);
  /// Bytes to the warpgroup's columns in a tile of Q or dO.
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
  /// The buffer of the other CTA's dS of a step.
  __device__ __forceinline__ std::uint8_t* peer_score_gradients(std::uint32_t step) const {
    return shared_.scores[2 * kC.score_stages + ScorePlace(step).stage()];
  }

  __device__ __forceinline__ void walk_item(RingPlace<1> item) {
    if constexpr (!kMakesP) shared_.v_ring.wait_full(item);
    issue_product(num_steps_, true);
    ptx::wgmma_wait<0>();
    ptx::pin(x_);
    if constexpr (kMakesP) {
      make_probabilities(num_steps_);
      say_probabilities(num_steps_);
    }
    while (!run_step()) {
    }
  }

  /// Issues the product for this warpgroup's scores of a step: S or dP.
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
  /// and the scores are discarded. Builds for racecheck use the present step's rows instead.
  __device__ __forceinline__ std::uint32_t next_step(bool is_last) const {
    return num_steps_ + (ptx::kArrivalsPerWarp == 32 && is_last ? 0 : 1);
  }

  /// One step n. Returns true after the last step of the item.
  ///
  /// | issue             | awaits              | then                                          |
  /// |-------------------|---------------------|-----------------------------------------------|
  /// | dV(n)             | dout or P full, n   | dS(n), which goes to the other CTA too        |
  /// |                   | dS full, n          | wait dV; hand dO(n) back                      |
  /// | dK(n), own dQ(n)  |                     |                                               |
  /// | S(n+1)            | q full, n + 1       | wait dK; hand Q(n) back                       |
  /// | the other's dQ(n) | peer dS full, n     | wait S; P(n+1); wait dQ, which leaves         |
  /// | dP(n+1)           | dout full, n + 1    | wait dQ, which leaves; wait dP                |
  __device__ __forceinline__ bool run_step() {
    const std::uint32_t step = num_steps_;
    const bool is_last = (flags_ & kLastStep) != 0;
    const std::uint32_t next = next_step(is_last);
    if constexpr (kMakesP) {
      add_own_dv(step);
    } else {
      add_dv(step);
      make_score_gradients(step);
    }
    shared_.score_gradients_full.wait(ScorePlace(step));
    if constexpr (!kMakesP) send_score_gradients(step);
    ptx::wgmma_wait<0>();
    ptx::pin(sums_.dv);
    if constexpr (kMakesP) ptx::pin(packed_);
    if (ptx::kArrivalsPerWarp == 1 || !is_last) view_.release_dout(step);
    issue_dk(step);
    issue_own_dq(step);
    const std::int32_t sum = view_.info(step).sum;
    if constexpr (kMakesP) {
      issue_product(next, !is_last);
      ptx::wgmma_wait<2>();
    } else {
      ptx::wgmma_wait<1>();
    }
    ptx::pin(sums_.dk);
    if (ptx::kArrivalsPerWarp == 1 || !is_last) view_.release_queries(step);
    shared_.peer_score_gradients_full.wait(ScorePlace(step));
    issue_peer_dq(step);
    const bool is_first_add = wait_to_add(shared_, step);
    if constexpr (kMakesP) {
      ptx::wgmma_wait<1>();
      ptx::pin(x_);
      if (!is_last) make_probabilities(next);
      ptx::wgmma_wait<0>();
      ptx::pin(dq_);
      if (!is_last) say_probabilities(next);
      add_dq_of(step, sum, is_first_add);
    } else {
      issue_product(next, !is_last);
      ptx::wgmma_wait<1>();
      ptx::pin(dq_);
      add_dq_of(step, sum, is_first_add);
      ptx::wgmma_wait<0>();
      ptx::pin(x_);
    }
    if (ptx::kArrivalsPerWarp != 1 && is_last) {
      view_.release_dout(step);
      view_.release_queries(step);
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

  /// Turns S of a step into P, packed and in shared memory, and with a softcap also into weights.
  __device__ __forceinline__ void make_probabilities(std::uint32_t step) {
    view_.exponentiate(step, flags_, ptx::cluster_rank() * kC.keys, x_);
    tile::pack_fragments<kC.type, kC.rows>(x_, packed_);
    ptx::pin(packed_);
    view_.store(probabilities(step), 0, packed_);
    if (view_.has_softcap()) {
      view_.weigh(step, x_);
      typename StepView<kC>::PackedScores packed;
      tile::pack_fragments<kC.type, kC.rows>(x_, packed);
      view_.store(weights(step), 0, packed);
    }
  }
  __device__ __forceinline__ void say_probabilities(std::uint32_t step) const {
    arrive_warp(shared_.probabilities_full.at(ScorePlace(step)));
  }

  /// Turns dP of a step into dS in shared memory. NOTE: with a softcap P has one buffer, which must
  /// be free when dS is signalled.
  __device__ __forceinline__ void make_score_gradients(std::uint32_t step) {
    typename StepView<kC>::PackedScores p;
    view_.load(weights(step), 0, p);
    view_.differentiate_packed(x_, p, packed_);
    view_.store(score_gradients(step), 0, packed_);
    if (view_.has_softcap()) ptx::wgmma_wait<0>();
    arrive_warp(shared_.score_gradients_full.at(ScorePlace(step)));
  }

  /// The warpgroup's columns of a tile of Q or dO.
  __device__ __forceinline__ static tile::MnMajor<kC.rows> columns_of(const std::uint8_t* rows) {
    return tile::MnMajor<kC.rows>(rows + kColumnBytes);
  }

  /// Copies the stored dS of a step to the other CTA.
  __device__ __forceinline__ void send_score_gradients(std::uint32_t step) const {
    const int peer = 1 - ptx::cluster_rank();
    ptx::Mbarrier& full = shared_.peer_score_gradients_full.at(ScorePlace(step));
    ptx::exchange_bytes_if(ptx::thread_index() == 128 * (1 + kWarpgroup), full,
                           ptx::peer_address(peer_score_gradients(step), peer),
                           score_gradients(step), kC.score_bytes(), ptx::peer_address(&full, peer));
  }

  /// Issues dQ = dS K of a step with the keys of this CTA.
  __device__ __forceinline__ void issue_own_dq(std::uint32_t step) {
    ptx::undefine(dq_);
    ptx::wgmma_fence();
    tile::issue_atb<kC.type, tile::kPanelElements, kC.keys>(
        dq_, tile::MnMajor<kC.keys>(score_gradients(step)),
        tile::MnMajor<kC.keys>(shared_.k + (2 * ptx::cluster_rank() + kWarpgroup) * kPanel));
  }
  /// Adds dS K of the other CTA's keys to dQ.
  __device__ __forceinline__ void issue_peer_dq(std::uint32_t step) {
    ptx::pin(dq_);
    ptx::wgmma_fence();
    tile::issue_add_atb<kC.type, tile::kPanelElements, kC.keys>(
        dq_, tile::MnMajor<kC.keys>(peer_score_gradients(step)),
        tile::MnMajor<kC.keys>(shared_.peer_k + kWarpgroup * kPanel));
  }
  __device__ __forceinline__ void add_dq_of(std::uint32_t step, std::int32_t sum, bool is_first) {
    DqTarget<kC>(params_, ptx::cluster_rank(), sum).put(32 * kWarpgroup, dq_, is_first);
    signal_dq_added(shared_, step);
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
  int flags_ = 0;  ///< flags of the step whose scores are being computed
  KeySums<kC> sums_;
  float dq_[tile::kPanelElements / 2];
  typename StepView<kC>::Scores x_;             ///< S^T and P^T, or dP^T and dS^T
  typename StepView<kC>::PackedScores packed_;  ///< P^T or dS^T as A operand
};

}  // namespace magi::sm90
