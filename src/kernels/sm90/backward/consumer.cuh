// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/copy.cuh"
#include "kernels/sm90/backward/epilogue.cuh"
#include "kernels/sm90/backward/params.hpp"
#include "kernels/sm90/backward/scores.cuh"
#include "kernels/sm90/backward/shared.cuh"
#include "kernels/tile/gemm.cuh"

namespace magi::sm90 {

/// One warpgroup: 64 keys of the k tile, their dK and dV in registers from the first to the last
/// step of an item. The scores of a step are multiplied while the step before is finished.
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
    if (warpgroup_ == 0) {
      // The dQ warp must have met the last step's arrivals before these.
      if (num_steps_ > 0) ptx::named_barrier_sync(kDqEmpty, 160);
      ptx::named_barrier_arrive(kDqFull, 160);
    }
  }

 private:
  using DqColumns = float[kC.dq_columns() / 2];

  /// One arrival of this warp, after all its lanes are done with what the barrier guards.
  __device__ __forceinline__ void release(ptx::Mbarrier& barrier) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(barrier);
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kC.dim / 2; ++i) dk_[i] = dv_[i] = 0.0f;
  }

  __device__ __forceinline__ int step_flags() const {
    return ptx::uniform(shared_.steps[num_steps_ % kInfoStages].flags);
  }

  __device__ __forceinline__ void walk_item() {
    wait_queries(num_steps_);
    issue_scores(num_steps_);
    ptx::mbarrier_wait(shared_.v_full, item_parity_);
    ptx::wgmma_wait<0>();
    ptx::pin(scores_);
    while (true) {
      const int flags = step_flags();
      run_step(flags);
      if ((flags & kLastStep) != 0) break;
    }
    ptx::wgmma_wait<0>();
    ptx::pin(packed_);
    ptx::pin(dk_);
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

  /// S^T = K Q^T of a step, issued only.
  __device__ __forceinline__ void issue_scores(std::uint32_t step) {
    const tile::KMajor<kC.keys> k(shared_.k + warpgroup_ * 64 * tile::kPanelRowBytes);
    const tile::KMajor<kC.rows> q(shared_.q[q_stage(step)]);
    ptx::wgmma_fence();
    tile::issue_abt<kC.type, kC.rows, kC.dim>(scores_, k, q);
  }

  /// dP^T = V dO^T of the present step, issued only.
  __device__ __forceinline__ void issue_dp() {
    ptx::mbarrier_wait(shared_.dout_full[dout_stage()], ring_parity<kC.dout_stages>(num_steps_));
    const tile::KMajor<kC.keys> v(shared_.v + warpgroup_ * 64 * tile::kPanelRowBytes);
    const tile::KMajor<kC.rows> dout(shared_.dout[dout_stage()]);
    ptx::wgmma_fence();
    tile::issue_abt<kC.type, kC.rows, kC.dim>(scores_, v, dout);
  }

  /// dV += P^T dO.
  __device__ __forceinline__ void issue_dv() {
    const tile::MnMajor<kC.rows> dout(shared_.dout[dout_stage()]);
    ptx::pin(packed_);
    ptx::pin(dv_);
    ptx::wgmma_fence();
    tile::issue_accumulate<kC.type, kC.dim, kC.rows>(dv_, packed_, dout);
  }

  /// dQ = dS K, this warpgroup's columns.
  __device__ __forceinline__ void issue_dq(DqColumns& dq) {
    constexpr int kBytes = kC.dq_columns() * 2;
    constexpr int kPanel = kC.keys * tile::kPanelRowBytes;
    const int first = warpgroup_ * kBytes;
    const tile::MnMajor<kC.keys> scores(shared_.scores[num_steps_ % 2]);
    const tile::MnMajor<kC.keys> k(shared_.k + first / tile::kPanelRowBytes * kPanel +
                                   first % tile::kPanelRowBytes);
    ptx::wgmma_fence();
    tile::issue_atb<kC.type, kC.dq_columns(), kC.keys>(dq, scores, k);
  }

  /// dK += dS^T Q.
  __device__ __forceinline__ void issue_dk() {
    const tile::MnMajor<kC.rows> q(shared_.q[q_stage(num_steps_)]);
    ptx::pin(packed_);
    ptx::pin(dk_);
    ptx::wgmma_fence();
    tile::issue_accumulate<kC.type, kC.dim, kC.rows>(dk_, packed_, q);
  }

  /// On entry the step's scores are there and dK of the step before is being multiplied.
  __device__ __forceinline__ void run_step(int flags) {
    Scores p;
    const int column = place().column;
    const float* lse2 = shared_.lse2[q_stage(num_steps_)];
    take_exponents<kC.has_softcap>(p, scores_, lse2, column, params_.score);
    if ((flags & kMasked) != 0) mask(p);
    exponentiate(p);
    ptx::pin(p);
    issue_dp();
    ptx::wgmma_wait<1>();
    ptx::pin(packed_);
    ptx::pin(dk_);
    if (num_steps_ > 0) release(shared_.q_empty[q_stage(num_steps_ - 1)]);
    ptx::pin(p);
    tile::pack_fragments<kC.type, kC.rows>(p, packed_);
    issue_dv();
    ptx::wgmma_wait<1>();
    ptx::pin(scores_);
    differentiate<kC.has_softcap>(p, scores_, shared_.delta[dout_stage()], lse2, column,
                                  params_.score);
    ptx::pin(p);
    // After the last step they are multiplied like any others, of whatever is there, and not used:
    // the products in flight must not depend on data.
    if ((flags & kLastStep) == 0) wait_queries(num_steps_ + 1);
    issue_scores(num_steps_ + 1);
    ptx::wgmma_wait<1>();
    ptx::pin(packed_);
    ptx::pin(dv_);
    release(shared_.dout_empty[dout_stage()]);
    ptx::pin(p);
    tile::pack_fragments<kC.type, kC.rows>(p, packed_);
    store_scores();
    ptx::named_barrier_sync(kScores, 256);
    DqColumns dq;
    issue_dq(dq);
    issue_dk();
    ptx::wgmma_wait<1>();
    ptx::pin(dq);
    ptx::pin(scores_);
    hand_over_queries(dq);
    ++num_steps_;
  }

  /// Made anew at each use: it costs no registers in between.
  __device__ __forceinline__ static tile::FragmentPlace place() {
    return tile::FragmentPlace(ptx::thread_index() % 128);
  }

  __device__ __forceinline__ void mask(Scores& x) const {
    const tile::FragmentPlace at = place();
    mask_step(x, shared_.steps[num_steps_ % kInfoStages], 64 * warpgroup_ + at.row, at.column,
              params_.packed_shift);
  }

  /// dS^T into shared memory: 128-byte rows, one per key.
  __device__ __forceinline__ void store_scores() {
    const int thread = ptx::thread_index() % 128;
    const int lane = thread % 32;
    const int row = 64 * warpgroup_ + thread / 32 * 16 + lane % 16;
    const std::uint32_t first =
        ptx::shared_address(shared_.scores[num_steps_ % 2]) + tile::swizzled_offset(row, lane / 16);
#pragma unroll
    for (int c = 0; c < kC.rows / 8; c += 2) {
      const std::uint32_t* value = packed_ + 2 * c;
      // Chunk c + lane / 16 of the row: c is even, and the swizzle an exclusive or.
      ptx::store_matrix_x4(first ^ static_cast<std::uint32_t>(c << 4), value[0], value[1], value[2],
                           value[3]);
    }
    ptx::fence_async_shared();
  }

  /// dQ to the warp that adds it to the sum.
  __device__ __forceinline__ void hand_over_queries(const DqColumns& dq) {
    if (num_steps_ > 0) ptx::named_barrier_sync(kDqEmpty + warpgroup_, 160);
    float* target = shared_.dq[warpgroup_];
    const int thread = ptx::thread_index() % 128;
#pragma unroll
    for (int i = 0; i < kC.dq_columns() / 2; i += 4) {
      *reinterpret_cast<float4*>(target + dq_place(i, thread)) =
          make_float4(dq[i], dq[i + 1], dq[i + 2], dq[i + 3]);
    }
    ptx::fence_async_shared();
    ptx::named_barrier_arrive(kDqFull + warpgroup_, 160);
  }

  BackwardStorage<kC>& shared_;
  const BackwardParams& params_;
  const int warpgroup_;
  std::uint32_t num_steps_ = 0;
  std::uint32_t item_parity_ = 0;
  float dk_[kC.dim / 2];
  float dv_[kC.dim / 2];
  /// S and dP in turn. NOTE: there is no room for both. What is made of one is pinned before the
  /// other is issued: else the compiler moves its reads behind the product and needs a copy.
  Scores scores_;
  std::uint32_t packed_[kScoreElements / 2];  ///< P^T, then dS^T, as A operand
};

}  // namespace magi::sm90
