// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/backward/step_view.cuh"
#include "kernels/tile/gemm.cuh"

// Both warpgroups hold the k tile of 64 keys. Each takes every second step, with its own q tile,
// and sums dK and dV of all keys. They synchronise only at the end of an item, where each gives the
// other half of the columns of its sums. Another kernel computes dQ (block_dq_kernel.cuh).
namespace magi::sm90 {

template <BackwardConfig kC>
class OwnRowsConsumer {
 public:
  __device__ __forceinline__ OwnRowsConsumer(BackwardStorage<kC>& shared,
                                             const BackwardParams& params, int warpgroup)
      : shared_(shared),
        params_(params),
        view_(shared, params),
        warpgroup_(warpgroup),
        step_(static_cast<std::uint32_t>(warpgroup)) {}

  __device__ __forceinline__ void run() {
    while (true) {
      shared_.k_ring.wait_full(item_);
      const ItemInfo& item = shared_.items[item_.parity()];
      const int flags = ptx::uniform(item.flags);
      if ((flags & kEndOfItems) != 0) break;
      clear();
      shared_.v_ring.wait_full(item_);
      if ((flags & kHasSteps) != 0) {
        walk_item();
        exchange(dk_);
        exchange(dv_);
        // The epilogue overwrites memory that the other warpgroup reads.
        ptx::named_barrier_sync(kExchange, kC.consumers * 128);
      }
      ptx::fence_async_shared();
      arrive_warp(shared_.k_ring.empty.at(item_));
      BackwardEpilogue<kC>(shared_, params_, warpgroup_).write(half(dk_), half(dv_), item);
      ptx::fence_async_shared();
      arrive_warp(shared_.v_ring.empty.at(item_));
      item_.advance();
    }
  }

 private:
  static_assert(kC.rows == 64 && kC.keys == 64 && kC.dim_qk == 128 && kC.dim_v == 128);
  // A warpgroup takes every second step, and so sees all phases of its stages.
  static_assert(kC.q_stages % 2 == 0 && kC.dout_stages % 2 == 0 && kC.step_stages() % 2 == 0);
  static constexpr int kScoreElements = kC.rows / 2;
  static constexpr int kSumElements = kC.dim_qk / 2;
  using Scores = float[kScoreElements];
  using PackedScores = std::uint32_t[kScoreElements / 2];
  using Rows = typename StepView<kC>::Rows;
  using Sums = float[kSumElements];
  using HalfSums = float[kSumElements / 2];

  __device__ __forceinline__ static HalfSums& half(Sums& sums) {
    return reinterpret_cast<HalfSums&>(sums);
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kSumElements; ++i) dk_[i] = dv_[i] = 0.0f;
  }

  /// Runs all steps of an item for this warpgroup, and the one that ends them.
  __device__ __forceinline__ void walk_item() {
    view_.wait_queries(step_);
    flags_ = view_.flags(step_);
    if ((flags_ & kNoRows) == 0) {
      issue_scores(step_, view_.load_lse(step_), first_);
      ptx::wgmma_wait<0>();
      ptx::pin(first_);
      issue_dp(step_, second_);
      mask_and_exponentiate(step_, first_);
      while (true) {
        run_step(first_, second_);
        if ((flags_ & kNoRows) != 0) {
          ptx::wgmma_wait<0>();
          ptx::pin(first_);
          break;
        }
        run_step(second_, first_);
        if ((flags_ & kNoRows) != 0) {
          ptx::wgmma_wait<0>();
          ptx::pin(second_);
          break;
        }
      }
    } else {
      view_.wait_dout(step_);
    }
    view_.release_dout(step_);
    view_.release_queries(step_);
    step_ += kC.consumers;
  }

  /// The warpgroup's number and 0, computed at each use: if the compiler knew that the values are
  /// constant, it would keep descriptors made of them in registers.
  __device__ __forceinline__ static int present_warpgroup() {
    return ptx::uniform(ptx::thread_index() >> 7) - 1;
  }
  __device__ __forceinline__ static int zero() { return present_warpgroup() & ~1; }
  __device__ __forceinline__ void issue_scores(std::uint32_t step, const Rows& lse_log2,
                                               Scores& scores) {
    view_.issue_scores(
        step, [this] { return shared_.k + zero(); }, lse_log2, scores);
  }
  __device__ __forceinline__ void issue_dp(std::uint32_t step, Scores& dp) {
    view_.await_and_issue_dp(
        step, [this] { return shared_.v + zero(); }, dp);
  }

  /// Turns S of a step with flags_ into P = 2^(exponent_scale * (S + lse_log2)).
  __device__ __forceinline__ void mask_and_exponentiate(std::uint32_t step, Scores& x) {
    take_exponents<false>(x, nullptr, 0, params_.softmax.score);
    if ((flags_ & kMasked) != 0) {
      const tile::FragmentPlace at = view_.place();
      mask_step(x, view_.info(step), at.row, at.column, params_.query.packed_shift);
    }
    exponentiate(x);
    ptx::pin(x);
  }

  /// One step n; the warpgroup's next one is n' = n + 2. On entry `p` holds P(n), and the product
  /// dP(n) into `dp` is in flight; on exit `dp` holds P(n'), and dP(n') into `p` is in flight.
  /// After the warpgroup's last step of the item, n' is the step that ends them: its buffers hold
  /// old data, and the results are discarded.
  ///
  /// | issue       | awaits      | in flight   | then                                            |
  /// |-------------|-------------|-------------|-------------------------------------------------|
  /// |             |             | dP          | packed = P                                      |
  /// | dV(n)       | q full, n'  | dP, dV      | wait dP; p = dS = P * (dP - delta)              |
  /// | S(n') in dp |             | dV, S       | wait dV; hand dO(n) back; packed = dS           |
  /// | dK(n)       |             | S, dK       |                                                 |
  /// | dP(n') in p | dout full   | S, dK, dP   | wait S; P(n') is made; wait dK; hand Q(n) back  |
  __device__ __forceinline__ void run_step(Scores& p, Scores& dp) {
    tile::pack_fragments<kC.type, kC.rows>(p, packed_);
    view_.issue_dv(step_, packed_, dv_);
    const std::uint32_t next = step_ + kC.consumers;
    view_.wait_queries(next);
    const Rows lse_log2 = view_.load_lse(next);
    ptx::wgmma_wait<1>();
    ptx::pin(dp);
    differentiate<false>(p, dp, nullptr, 0, params_.softmax.score);
    ptx::pin(p);
    flags_ = view_.flags(next);
    issue_scores(next, lse_log2, dp);
    ptx::wgmma_wait<1>();
    ptx::pin(packed_);
    ptx::pin(dv_);
    view_.release_dout(step_);
    tile::pack_fragments<kC.type, kC.rows>(p, packed_);
    ptx::pin(packed_);
    view_.issue_dk(step_, packed_, dk_);
    issue_dp(next, p);
    ptx::wgmma_wait<2>();
    ptx::pin(dp);
    mask_and_exponentiate(next, dp);
    ptx::wgmma_wait<1>();
    ptx::pin(packed_);
    ptx::pin(dk_);
    view_.release_queries(step_);
    step_ = next;
  }

  /// Gives the other warpgroup half of the columns of a sum, and leaves the complete sum of its own
  /// columns in the first half. The exchange uses the buffers of K and V, which are free by then.
  __device__ __forceinline__ void exchange(Sums& sums) {
    constexpr int kHalf = kSumElements / 2;
    constexpr int kThreads = 128;
    const int thread = ptx::thread_index() & (kThreads - 1);
    const bool has_low = warpgroup_ == 0;
    auto* given = reinterpret_cast<float4*>(has_low ? shared_.k : shared_.v) + thread;
    const auto* taken = reinterpret_cast<const float4*>(has_low ? shared_.v : shared_.k) + thread;
    ptx::named_barrier_sync(kExchange, kC.consumers * kThreads);
#pragma unroll
    for (int i = 0; i < kHalf; i += 4) {
      const auto other = [&](int j) { return has_low ? sums[kHalf + j] : sums[j]; };
      given[i / 4 * kThreads] = make_float4(other(i), other(i + 1), other(i + 2), other(i + 3));
    }
    ptx::named_barrier_sync(kExchange, kC.consumers * kThreads);
#pragma unroll
    for (int i = 0; i < kHalf; i += 4) {
      const auto own = [&](int j) { return has_low ? sums[j] : sums[kHalf + j]; };
      const float4 more = taken[i / 4 * kThreads];
      sums[i] = own(i) + more.x;
      sums[i + 1] = own(i + 1) + more.y;
      sums[i + 2] = own(i + 2) + more.z;
      sums[i + 3] = own(i + 3) + more.w;
    }
  }

  BackwardStorage<kC>& shared_;
  const BackwardParams& params_;
  const StepView<kC> view_;
  const int warpgroup_;
  std::uint32_t step_;  ///< the warpgroup's present step
  RingPlace<1> item_;
  int flags_ = 0;  ///< flags of the step whose scores are being computed
  Sums dk_;
  Sums dv_;
  Scores first_;  ///< P or dP, in turn with second_
  Scores second_;
  PackedScores packed_;  ///< P^T, then dS^T, as A operand
};

}  // namespace magi::sm90
