// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/backward/dq_sum.cuh"
#include "kernels/sm90/backward/step_view.cuh"

// A step where dK and dV of 64 keys leave a warpgroup room for little more than one array of
// scores, as at head dims 192 and 128. P and dS are operands in shared memory, and dS is made of P
// in 16 bits. Each warpgroup multiplies half of the columns of dQ: one panel of 64, and 32 of the
// panel between. They take the registers of scores one after the other.
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

  /// Where the warpgroup's keys begin in a panel. Found anew at each use: descriptors made of a
  /// value that the compiler knows to be constant would stay in registers.
  __device__ __forceinline__ static int key_bytes() {
    return (ptx::uniform(ptx::thread_index() >> 7) - 1) * (64 * tile::kPanelRowBytes);
  }
  __device__ __forceinline__ std::uint8_t* score_gradients(std::uint32_t step) const {
    return shared_.scores[ScorePlace(step).stage()];
  }
  __device__ __forceinline__ std::uint8_t* probabilities() const {
    return shared_.scores[kC.score_stages];
  }

  __device__ __forceinline__ void walk_item(RingPlace<1> item) {
    shared_.v_ring.wait_full(item);
    bool is_first = true;
    while (!run_step(is_first)) is_first = false;
    const std::uint32_t last = num_steps_ - 1;
    shared_.scores_full.wait(ScorePlace(last));
    const bool is_first_add = wait_to_add(shared_, last);
#pragma unroll 1
    for (int part = 0; part < 3; ++part) {
      issue_columns(last, part);
      ptx::wgmma_wait<0>();
      add_columns(last, part, is_first_add);
    }
    say_added(shared_, last);
  }

  /// One step n. True after the last step of the item.
  ///
  /// | issue       | awaits             | in flight | then                                        |
  /// |-------------|--------------------|-----------|---------------------------------------------|
  /// | S(n)        | q full, n          | S         | wait S; P(n) to shared memory               |
  /// | dP(n)       | dout full          | dP        |                                             |
  /// | dV(n)       | scores full, n - 1 | dP, dV    | wait dP; dS(n) to shared memory; wait dV;   |
  /// |             |                    |           | hand dO(n) back                             |
  /// | dQ(n-1), 64 |                    | dQ        |                                             |
  /// | dK(n)       | add full, n - 1    | dQ, dK    | wait dQ; it leaves                          |
  /// | dQ(n-1), 32 |                    | dK, dQ    | wait both; hand Q(n) back; arrive scores    |
  /// |             |                    |           | full; dQ leaves                             |
  __device__ __forceinline__ bool run_step(bool is_first) {
    const std::uint32_t step = num_steps_;
    view_.wait_queries(step);
    const int flags = view_.flags(step);
    view_.issue_plain_scores(step, shared_.k + key_bytes(), x_);
    ptx::wgmma_wait<0>();
    ptx::pin(x_);
    make_probabilities(step, flags, is_first);
    view_.wait_dout(step);
    view_.issue_plain_dp(step, shared_.v + key_bytes(), x_);
    ptx::pin(sums_.dv);
    ptx::wgmma_fence();
    tile::issue_add_ab<kC.type, kC.dim_v, kC.rows>(
        sums_.dv, tile::KMajor<kC.keys>(probabilities() + key_bytes()),
        tile::MnMajor<kC.rows>(view_.dout(step)));
    ptx::wgmma_wait<1>();
    ptx::pin(x_);
    make_score_gradients(step, is_first);
    ptx::wgmma_wait<0>();
    ptx::pin(sums_.dv);
    view_.release_dout(step);
    issue_panel(step - 1);
    ptx::pin(sums_.dk);
    ptx::wgmma_fence();
    tile::issue_add_ab<kC.type, kC.dim_qk, kC.rows>(
        sums_.dk, tile::KMajor<kC.keys>(score_gradients(step) + key_bytes()),
        tile::MnMajor<kC.rows>(view_.queries(step)));
    const bool is_first_add = !is_first && wait_to_add(shared_, step - 1);
    ptx::wgmma_wait<1>();
    if (!is_first) add_panel(step - 1, is_first_add);
    issue_columns(step - 1, 2);
    ptx::wgmma_wait<0>();
    ptx::pin(sums_.dk);
    view_.release_queries(step);
    arrive_warp(shared_.scores_full.at(ScorePlace(step)));
    if (!is_first) {
      add_columns(step - 1, 2, is_first_add);
      say_added(shared_, step - 1);
    }
    ++num_steps_;
    return (flags & kLastStep) != 0;
  }

  /// Turns S of a step into P and, with a softcap, into weights. These lie where dS will be.
  __device__ __forceinline__ void make_probabilities(std::uint32_t step, int flags, bool is_first) {
    view_.exponentiate_plain(step, flags, 64 * kWarpgroup, x_);
    store_scores(probabilities());
    if (view_.has_softcap()) {
      view_.weigh(step, x_);
      if (!is_first) shared_.scores_full.wait(ScorePlace(step - 1));
      store_scores(score_gradients(step));
    }
    ptx::fence_async_shared();
    ptx::named_barrier_sync(kOwnScores + kWarpgroup, 128);
  }

  /// Turns dP of a step into dS / softmax_scale, in shared memory.
  __device__ __forceinline__ void make_score_gradients(std::uint32_t step, bool is_first) {
    view_.add_delta(step, x_);
    const std::uint8_t* weights = view_.has_softcap() ? score_gradients(step) : probabilities();
    for_each_word<kC.keys, kC.rows / 4>(
        view_.own_word(weights, 64 * kWarpgroup),
        [&](int i, std::uint32_t address) { view_.multiply(x_, i, ptx::load_shared(address)); });
    if (!is_first) shared_.scores_full.wait(ScorePlace(step - 1));
    store_scores(score_gradients(step));
    ptx::fence_async_shared();
    ptx::named_barrier_sync(kOwnScores + kWarpgroup, 128);
  }

  /// Stores what x_ holds, in 16 bits, in a buffer of scores.
  __device__ __forceinline__ void store_scores(const std::uint8_t* buffer) const {
    for_each_word<kC.keys, kC.rows / 4>(
        view_.own_word(buffer, 64 * kWarpgroup), [&](int i, std::uint32_t address) {
          ptx::store_shared(address, ptx::pack_half2<kC.type>(x_[2 * i], x_[2 * i + 1]));
        });
  }

  // dQ = dS K has the registers of scores: first a panel of 64 columns, then 32 of the panel
  // between. At the end of an item it is made of 3 parts of 32 columns, the last of them those
  // between.
  static constexpr int kPanel = kC.keys * tile::kPanelRowBytes;
  using Columns = float[16];
  __device__ __forceinline__ Columns& columns() { return reinterpret_cast<Columns&>(x_); }

  __device__ __forceinline__ void issue_panel(std::uint32_t step) {
    ptx::forget(x_);
    ptx::wgmma_fence();
    tile::issue_atb<kC.type, 64, kC.keys>(
        x_, tile::MnMajor<kC.keys>(score_gradients(step)),
        tile::MnMajor<kC.keys>(shared_.k + 2 * kWarpgroup * kPanel));
  }
  __device__ __forceinline__ void issue_columns(std::uint32_t step, int part) {
    constexpr int kBytes = tile::kPanelRowBytes / 2;
    const int first =
        part == 2 ? kPanel + kWarpgroup * kBytes : 2 * kWarpgroup * kPanel + part * kBytes;
    ptx::forget(columns());
    ptx::wgmma_fence();
    tile::issue_atb<kC.type, 32, kC.keys>(columns(), tile::MnMajor<kC.keys>(score_gradients(step)),
                                          tile::MnMajor<kC.keys>(shared_.k + first));
  }

  /// Add what a product has made to the step's sum, or begin it.
  __device__ __forceinline__ void add_panel(std::uint32_t step, bool is_first) {
    ptx::pin(x_);
    dq_target(step).put(0, x_, is_first);
  }
  __device__ __forceinline__ void add_columns(std::uint32_t step, int part, bool is_first) {
    ptx::pin(columns());
    dq_target(step).put(16 * part, columns(), is_first);
  }
  __device__ __forceinline__ DqTarget<kC> dq_target(std::uint32_t step) const {
    return DqTarget<kC>(params_, kWarpgroup, view_.info(step).sum);
  }

  BackwardStorage<kC>& shared_;
  const BackwardParams& params_;
  const StepView<kC> view_;
  std::uint32_t num_steps_ = 0;
  KeySums<kC> sums_;
  typename StepView<kC>::Scores x_;  ///< S^T and P^T, dP^T and dS^T, most of dQ
};

}  // namespace magi::sm90
