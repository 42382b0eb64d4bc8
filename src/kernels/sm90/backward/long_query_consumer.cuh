// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/backward/dq_sum.cuh"
#include "kernels/sm90/backward/step_view.cuh"

// The step for head dims 192 and 128: dK and dV of 64 keys leave a warpgroup registers for one
// array of scores and one 16-bit operand. P is an A operand in registers; dS is one in shared
// memory, computed from P in 16 bits. Each warpgroup computes half of the columns of dQ: one panel
// of 64, in the registers of the scores, and 32 columns of the middle panel, in those of P.
namespace magi::sm90 {

template <BackwardConfig kC, int kWarpgroup>
class LongQueryConsumer {
 public:
  __device__ __forceinline__ LongQueryConsumer(BackwardStorage<kC>& shared,
                                               const BackwardParams& params)
      : shared_(shared), params_(params), view_(shared, params) {}

  __device__ __forceinline__ void run() {
    run_items(
        shared_, params_, [] { return kWarpgroup; }, sums_,
        [&](RingPlace<1> item) { walk_item(item); });
  }

 private:
  static_assert(kC.rows == 64 && kC.keys == 128 && kC.dim_qk == 192);
  using ScorePlace = RingPlace<kC.score_stages>;

  /// Returns kWarpgroup, computed at each use: if the compiler knew that the value is constant, it
  /// would keep descriptors made of it in registers.
  __device__ __forceinline__ static int warpgroup() {
    return ptx::uniform(ptx::thread_index() >> 7) - 1;
  }
  /// The bytes to the warpgroup's keys in a panel.
  __device__ __forceinline__ static int key_bytes() {
    return warpgroup() * (64 * tile::kPanelRowBytes);
  }
  __device__ __forceinline__ std::uint8_t* score_gradients(std::uint32_t step) const {
    return shared_.scores[ScorePlace(step).stage()];
  }

  __device__ __forceinline__ void walk_item(RingPlace<1> item) {
    shared_.v_ring.wait_full(item);
    bool is_first = true;
    while (!run_step(is_first)) is_first = false;
    const std::uint32_t last = num_steps_ - 1;
    shared_.score_gradients_full.wait(ScorePlace(last));
    issue_dq(last);
    ptx::wgmma_wait<0>();
    ptx::pin(sums_.dk);
    view_.release_queries(last);
    add_dq(last, wait_to_add(shared_, last));
  }

  /// One step n. Returns true after the last step of the item.
  ///
  /// | issue       | awaits             | in flight  | then                                       |
  /// |-------------|--------------------|------------|--------------------------------------------|
  /// | S(n)        | q full, n          | dK, S      | wait dK(n-1); hand Q(n-1) back; wait S;    |
  /// |             |                    |            | P(n) is packed                             |
  /// | dP(n)       | dout full          | dP         |                                            |
  /// | dV(n)       |                    | dP, dV     | wait dP; dS(n) to shared memory; wait dV;  |
  /// |             |                    |            | hand dO(n) back                            |
  /// | dQ(n-1)     | dS full, n - 1     | dQ         |                                            |
  /// | dK(n)       | add full, n - 1    | dQ, dK     | wait dQ; arrive dS full; it leaves         |
  __device__ __forceinline__ bool run_step(bool is_first) {
    const std::uint32_t step = num_steps_;
    view_.wait_queries(step);
    const int flags = view_.flags(step);
    view_.issue_plain_scores(step, shared_.k + key_bytes(), x_);
    ptx::wgmma_wait<1>();
    ptx::pin(sums_.dk);
    if (!is_first) view_.release_queries(step - 1);
    ptx::wgmma_wait<0>();
    ptx::pin(x_);
    make_probabilities(step, flags, is_first);
    issue_dp_and_dv(step);
    ptx::wgmma_wait<1>();
    ptx::pin(x_);
    make_score_gradients(step, is_first);
    ptx::wgmma_wait<0>();
    ptx::pin(packed_);
    ptx::pin(sums_.dv);
    view_.release_dout(step);
    issue_dq(step - 1);
    issue_dk(step);
    const bool is_first_add = !is_first && wait_to_add(shared_, step - 1);
    ptx::wgmma_wait<1>();
    arrive_warp(shared_.score_gradients_full.at(ScorePlace(step)));
    if (!is_first) add_dq(step - 1, is_first_add);
    ++num_steps_;
    return (flags & kLastStep) != 0;
  }

  /// Issues dP^T = V dO^T and dV += P^T dO of a step.
  __device__ __forceinline__ void issue_dp_and_dv(std::uint32_t step) {
    view_.wait_dout(step);
    view_.issue_plain_dp(step, shared_.v + key_bytes(), x_);
    view_.issue_dv(step, packed_, sums_.dv);
  }
  /// Issues dK += dS^T Q of a step.
  __device__ __forceinline__ void issue_dk(std::uint32_t step) {
    ptx::pin(sums_.dk);
    ptx::wgmma_fence();
    tile::issue_add_ab<kC.type, kC.dim_qk, kC.rows>(
        sums_.dk, tile::KMajor<kC.keys>(score_gradients(step) + key_bytes()),
        tile::MnMajor<kC.rows>(view_.queries(step)));
  }

  /// Turns S of a step into packed P, and with a softcap into weights, in the buffer of dS.
  __device__ __forceinline__ void make_probabilities(std::uint32_t step, int flags, bool is_first) {
    view_.exponentiate_plain(step, flags, 64 * kWarpgroup, x_);
    tile::pack_fragments<kC.type, kC.rows>(x_, packed_);
    if (view_.has_softcap()) {
      view_.weigh(step, x_);
      if (!is_first) shared_.score_gradients_full.wait(ScorePlace(step - 1));
      store_scores(score_gradients(step));
    }
  }

  /// Turns dP of a step into dS / softmax_scale, in shared memory.
  __device__ __forceinline__ void make_score_gradients(std::uint32_t step, bool is_first) {
    view_.add_delta(step, x_);
    if (view_.has_softcap()) {
      // dV still reads packed_ until here.
      ptx::wgmma_wait<0>();
      view_.load(score_gradients(step), 64 * kWarpgroup, packed_);
    }
#pragma unroll
    for (int i = 0; i < kC.rows / 4; ++i) view_.multiply(x_, i, packed_[i]);
    if (!is_first) shared_.score_gradients_full.wait(ScorePlace(step - 1));
    store_scores(score_gradients(step));
    ptx::fence_async_shared();
    ptx::named_barrier_sync(kOwnDs + kWarpgroup, 128);
  }

  /// Stores what x_ holds, in 16 bits, in a buffer of scores.
  __device__ __forceinline__ void store_scores(const std::uint8_t* buffer) const {
    for_each_word<kC.keys, kC.rows / 4>(
        view_.own_word(buffer, 64 * kWarpgroup), [&](int i, std::uint32_t address) {
          ptx::store_shared(address, ptx::pack_half2<kC.type>(x_[2 * i], x_[2 * i + 1]));
        });
  }

  static constexpr int kPanel = kC.keys * tile::kPanelRowBytes;
  using Columns = float[16];

  /// Issues dQ = dS K of a step: 64 columns, and 32 of the middle panel.
  __device__ __forceinline__ void issue_dq(std::uint32_t step) {
    constexpr int kBytes = tile::kPanelRowBytes / 2;
    const tile::MnMajor<kC.keys> operand(score_gradients(step));
    ptx::undefine(x_);
    ptx::undefine(columns_);
    ptx::wgmma_fence();
    tile::issue_atb<kC.type, 64, kC.keys>(
        x_, operand, tile::MnMajor<kC.keys>(shared_.k + 2 * warpgroup() * kPanel));
    tile::issue_atb<kC.type, 32, kC.keys>(
        columns_, operand, tile::MnMajor<kC.keys>(shared_.k + kPanel + warpgroup() * kBytes));
  }
  /// Adds this dQ to the step's sum, or stores it there if it is the first.
  __device__ __forceinline__ void add_dq(std::uint32_t step, bool is_first) {
    ptx::pin(x_);
    ptx::pin(columns_);
    const DqTarget<kC> target = dq_target(step);
    target.put(0, x_, is_first);
    target.put(32, columns_, is_first);
    signal_dq_added(shared_, step);
  }
  __device__ __forceinline__ DqTarget<kC> dq_target(std::uint32_t step) const {
    return DqTarget<kC>(params_, kWarpgroup, view_.info(step).sum);
  }

  BackwardStorage<kC>& shared_;
  const BackwardParams& params_;
  const StepView<kC> view_;
  std::uint32_t num_steps_ = 0;
  KeySums<kC> sums_;
  typename StepView<kC>::Scores x_;             ///< S^T and P^T, dP^T and dS^T, most of dQ
  typename StepView<kC>::PackedScores packed_;  ///< P^T
  Columns columns_;                             ///< the rest of dQ
};

}  // namespace magi::sm90
