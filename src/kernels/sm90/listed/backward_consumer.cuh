// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/backward/prepare.hpp"
#include "kernels/sm90/forward/softmax.cuh"
#include "kernels/sm90/listed/backward_shared.cuh"
#include "kernels/sm90/listed/head_rows.cuh"
#include "kernels/sm90/listed/key_sums.cuh"
#include "kernels/sm90/listed/mask_columns.cuh"
#include "kernels/tile/gemm.cuh"
#include "kernels/tile/stage.cuh"

namespace magi::sm90 {

/// One warpgroup: 64 query heads of an item, with dQ in registers from the first to the last tile.
/// Of two warpgroups the first computes dV of each tile's keys and the second dK, from P and dS of
/// both. A single one computes both.
template <ListedConfig kC>
class ListedBackwardConsumer {
 public:
  __device__ __forceinline__ ListedBackwardConsumer(ListedBackwardStorage<kC>& shared,
                                                    const ListedBackwardParams& params,
                                                    int warpgroup)
      : shared_(shared), params_(params), warpgroup_(warpgroup), mask_(params.shape, warpgroup) {}

  __device__ __forceinline__ void run() {
    for (auto i = static_cast<std::int32_t>(blockIdx.x); i < params_.shape.num_items;
         i += static_cast<std::int32_t>(gridDim.x)) {
      const ListedItem item(params_.shape, i);
      kv_head_ = item.kv_head;
      load_rows(rows_of(item));
#pragma unroll
      for (int j = 0; j < kC.dim / 2; ++j) dq_[j] = 0.0f;
      shared_.q_ring.wait_full(queries_);
      ptx::fence_async_shared();
      const int num_tiles = ptx::uniform(shared_.num_tiles);
      for (int t = 0; t < num_tiles; ++t) step();
      arrive_warp(shared_.q_ring.empty.at(queries_));
      queries_.advance();
#pragma unroll
      for (int j = 0; j < kC.dim / 2; ++j) dq_[j] *= params_.score.softmax_scale;
      rows_of(item).template store<kC.type>(params_.dq, params_.shape.dim_qk, dq_);
    }
  }

 private:
  static constexpr int kThreads = 128 * kC.consumers;
  static constexpr int kScoreStages = ListedBackwardStorage<kC>::kScoreStages;
  using Scores = float[kC.keys / 2];
  using KeyRows = float[kC.dim / 2];

  /// Computed at each use, so that it holds no registers in between.
  __device__ __forceinline__ TileRows<kC.is_joined> rows_of(const ListedItem& item) const {
    return {params_.shape, item, item.group * kC.rows() + 64 * warpgroup_};
  }

  /// Loads lse in base 2 and delta of the thread's rows. Rows without a query head, or whose lse
  /// reaches kLargestLse, get weights of 0.
  __device__ __forceinline__ void load_rows(const TileRows<kC.is_joined>& rows) {
    const std::int64_t heads_q = std::int64_t{params_.shape.heads_kv} * params_.shape.heads_per_kv;
#pragma unroll
    for (int row = 0; row < tile::kRowsPerThread; ++row) {
      lse_[row] = INFINITY;
      delta_[row] = 0.0f;
      if (!rows.is_head(row)) continue;
      const float lse = *row_at<float>(params_.lse, rows.token_of(row), rows.head_of(row)) * kLog2E;
      if (fabsf(lse) >= kLargestLse) continue;
      lse_[row] = lse;
      delta_[row] = params_.delta[rows.token_of(row) * heads_q + rows.head_of(row)];
    }
  }

  __device__ __forceinline__ void step() {
    Scores p;
    Scores ds;
    issue_scores(p, ds);
    ptx::wgmma_wait<1>();
    ptx::pin(p);
    make_weights(p);
    ptx::wgmma_wait<0>();
    ptx::pin(ds);
    arrive_warp(shared_.v_ring.empty.at(tiles_));
    differentiate(p, ds);
    stage(p, ds);
    std::int32_t keys[tile::kRowsPerThread];
    const int key_row = tile::FragmentPlace(ptx::thread_index() % 128).row;
    keys[0] = shared_.keys[tiles_.stage()][key_row];
    keys[1] = shared_.keys[tiles_.stage()][key_row + 8];
    add_products(ds, keys);
    tiles_.advance();
    scores_.advance();
  }

  /// Issues S = Q K^T and dP = dO V^T.
  __device__ __forceinline__ void issue_scores(Scores& s, Scores& dp) {
    constexpr int kRowBytes = tile::kPanelRowBytes;
    const tile::KMajor<kC.rows()> q(shared_.q + warpgroup_ * 64 * kRowBytes);
    const tile::KMajor<kC.rows()> dout(shared_.dout + warpgroup_ * 64 * kRowBytes);
    shared_.k_ring.wait_full(tiles_);
    shared_.v_ring.wait_full(tiles_);
    ptx::fence_async_shared();
    ptx::undefine(s);
    ptx::undefine(dp);
    ptx::wgmma_fence();
    tile::issue_abt<kC.type, kC.keys, kC.dim>(s, q,
                                              tile::KMajor<kC.keys>(shared_.k[tiles_.stage()]));
    tile::issue_abt<kC.type, kC.keys, kC.dim>(dp, dout,
                                              tile::KMajor<kC.keys>(shared_.v[tiles_.stage()]));
  }

  /// Turns scores into p = 2^(exponent_scale * f(s) - lse).
  __device__ __forceinline__ void make_weights(Scores& s) {
    mask_.load(shared_.is_key[tiles_.stage()]);
    if (has_softcap()) {
#pragma unroll
      for (int i = 0; i < kC.keys / 2; ++i) s[i] = capped(s[i], params_.score);
    }
    mask_.apply(s);
#pragma unroll
    for (int i = 0; i < kC.keys / 2; ++i) {
      s[i] = ptx::exp2_approx(fmaf(s[i], params_.score.exponent_scale, -lse_[(i / 2) % 2]));
    }
  }

  /// Turns dP into dS / softmax_scale = p * (dP - delta) * f'(s) / softmax_scale. With a softcap f'
  /// is 1 - tanh^2, and tanh = f(s) follows from p.
  __device__ __forceinline__ void differentiate(const Scores& p, Scores& dp) const {
#pragma unroll
    for (int i = 0; i < kC.keys / 2; ++i) dp[i] = p[i] * (dp[i] - delta_[(i / 2) % 2]);
    if (!has_softcap()) return;
    const float unit = ptx::reciprocal_approx(params_.score.exponent_scale);
#pragma unroll
    for (int i = 0; i < kC.keys / 2; ++i) {
      const float tanh = (ptx::log2_approx(p[i]) + lse_[(i / 2) % 2]) * unit;
      dp[i] = p[i] > 0.0f ? dp[i] * fmaxf(fmaf(-tanh, tanh, 1.0f), 0.0f) : 0.0f;
    }
  }
  __device__ __forceinline__ bool has_softcap() const { return params_.score.cap_scale != 0.0f; }

  /// Stores P and dS in shared memory for all consumers.
  __device__ __forceinline__ void stage(const Scores& p, const Scores& ds) const {
    const int thread = ptx::thread_index() % 128;
    const int first_row = 64 * warpgroup_ + thread / 32 * 16;
    if constexpr (kScoreStages == 1) ptx::named_barrier_sync(kScoresRead, kThreads);
    tile::stage_rows<kC.type, kC.rows()>(shared_.p[scores_.stage()], first_row, thread % 32, p);
    tile::stage_rows<kC.type, kC.rows()>(shared_.ds[scores_.stage()], first_row, thread % 32, ds);
    ptx::fence_async_shared();
    ptx::named_barrier_sync(kScoresStaged, kThreads);
  }

  /// Computes dQ += dS K and, for the tile's keys, dV = P^T dO or dK = dS^T Q, or both, and adds
  /// these to the keys' sums.
  __device__ __forceinline__ void add_products(const Scores& ds,
                                               const std::int32_t (&keys)[tile::kRowsPerThread]) {
    std::uint32_t packed[kC.keys / 4];
    tile::pack_fragments<kC.type, kC.keys>(ds, packed);
    KeyRows sums;
    ptx::pin(packed);
    ptx::pin(dq_);
    ptx::wgmma_fence();
    tile::issue_accumulate<kC.type, kC.dim, kC.keys>(
        dq_, packed, tile::MnMajor<kC.keys>(shared_.k[tiles_.stage()]));
    const bool makes_values = kC.consumers == 1 || warpgroup_ == 0;
    const std::uint8_t* probabilities = shared_.p[scores_.stage()];
    const std::uint8_t* gradients = shared_.ds[scores_.stage()];
    issue_keys(makes_values ? probabilities : gradients, makes_values ? shared_.dout : shared_.q,
               sums);
    ptx::wgmma_wait<0>();
    ptx::pin(dq_);
    ptx::pin(packed);
    ptx::pin(sums);
    arrive_warp(shared_.k_ring.empty.at(tiles_));
    if (makes_values) {
      add_values(keys, sums);
    } else {
      add_keys(keys, sums);
    }
    if constexpr (kC.consumers == 1) {
      issue_keys(gradients, shared_.q, sums);
      ptx::wgmma_wait<0>();
      ptx::pin(sums);
      add_keys(keys, sums);
    }
  }

  /// Issues sums = scores^T rows, over all query heads of the tile.
  __device__ __forceinline__ static void issue_keys(const std::uint8_t* scores,
                                                    const std::uint8_t* rows, KeyRows& sums) {
    ptx::undefine(sums);
    ptx::wgmma_fence();
    tile::issue_atb<kC.type, kC.dim, kC.rows()>(sums, tile::MnMajor<kC.rows()>(scores),
                                                tile::MnMajor<kC.rows()>(rows));
  }

  __device__ __forceinline__ void add_values(const std::int32_t (&keys)[tile::kRowsPerThread],
                                             const KeyRows& dv) const {
    const ListedShape& shape = params_.shape;
    add_key_rows<kC.has_parts>(params_.dv_sums + kv_head_ * shape.dim_v,
                               std::int64_t{shape.heads_kv} * shape.dim_v, shape.dim_v, keys, dv);
  }
  __device__ __forceinline__ void add_keys(const std::int32_t (&keys)[tile::kRowsPerThread],
                                           KeyRows& dk) const {
    const ListedShape& shape = params_.shape;
#pragma unroll
    for (int i = 0; i < kC.dim / 2; ++i) dk[i] *= params_.score.softmax_scale;
    add_key_rows<kC.has_parts>(params_.dk_sums + kv_head_ * shape.dim_qk,
                               std::int64_t{shape.heads_kv} * shape.dim_qk, shape.dim_qk, keys, dk);
  }

  ListedBackwardStorage<kC>& shared_;
  const ListedBackwardParams& params_;
  const int warpgroup_;
  TileMask<kC> mask_;
  std::int32_t kv_head_ = 0;
  RingPlace<1> queries_;
  RingPlace<kC.stages> tiles_;
  RingPlace<kScoreStages> scores_;
  float lse_[tile::kRowsPerThread];
  float delta_[tile::kRowsPerThread];
  float dq_[kC.dim / 2];
};

}  // namespace magi::sm90
