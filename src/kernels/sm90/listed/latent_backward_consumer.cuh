// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/backward/prepare.hpp"
#include "kernels/sm90/listed/head_rows.cuh"
#include "kernels/sm90/listed/key_sums.cuh"
#include "kernels/sm90/listed/latent_shared.cuh"
#include "kernels/sm90/listed/mask_columns.cuh"
#include "kernels/tile/gemm.cuh"
#include "kernels/tile/stage.cuh"

namespace magi::sm90 {

/// Warpgroup kWarpgroup of two. For each tile the first computes P, the second dP and then dS from
/// both. Each owns half of the value columns of dQ, which stays in registers, and of the gradients
/// of keys. Columns after the value belong to the first in dQ, to the second in key gradients.
template <DType kType, bool kHasParts, int kWarpgroup>
class LatentBackwardConsumer {
 public:
  __device__ __forceinline__ LatentBackwardConsumer(LatentBackwardStorage& shared,
                                                    const ListedBackwardParams& params)
      : shared_(shared), params_(params) {}

  __device__ __forceinline__ void run() {
    if constexpr (!kIsFirst) ptx::named_barrier_arrive(kLatentRead, kThreads);
    for (auto i = static_cast<std::int32_t>(blockIdx.x); i < params_.shape.num_items;
         i += static_cast<std::int32_t>(gridDim.x)) {
      kv_head_ = ListedItem(params_.shape, i).kv_head;
      load_rows(rows_of(i));
#pragma unroll
      for (float& x : dq_) x = 0.0f;
#pragma unroll
      for (float& x : dq_rope_) x = 0.0f;
      shared_.q_ring.wait_full(queries_);
      ptx::fence_async_shared();
      const int num_tiles = ptx::uniform(shared_.num_tiles);
      for (int t = 0; t < num_tiles; ++t) step();
      arrive_warp(shared_.q_ring.empty.at(queries_));
      queries_.advance();
      const HeadRows rows = rows_of(i);
      rows.template store<kType>(columns_of(params_.dq, kFirstColumn), kHalfColumns, dq_);
      if constexpr (kIsFirst) {
        rows.template store<kType>(columns_of(params_.dq, kLatentValueDim), kRope, dq_rope_);
      }
    }
  }

 private:
  static constexpr bool kIsFirst = kWarpgroup == 0;
  static constexpr int kThreads = 128 * kLatentConsumers;
  static constexpr int kFirstColumn = kWarpgroup * kHalfColumns;
  static constexpr int kRope = kLatentDim - kLatentValueDim;
  /// Columns of key gradients at a time; the first warpgroup has fewer free registers.
  static constexpr int kColumns = kIsFirst ? 64 : 128;
  static constexpr std::uint32_t kAllKeys = (1u << kLatentKeysPerWarp) - 1;
  using Scores = float[kLatentRows / 2];
  using KeyRows = std::int32_t[tile::kRowsPerThread];
  using Rows = tile::KMajor<kLatentRows>;
  using Columns = tile::MnMajor<kLatentRows>;

  __device__ __forceinline__ HeadRows rows_of(std::int32_t index) const {
    const ListedItem item(params_.shape, index);
    return {params_.shape, item, item.group * kLatentRows};
  }
  __device__ __forceinline__ static StridedRows columns_of(StridedRows rows, int first) {
    const int bytes = rows.is_float() ? 4 : 2;
    rows.data = static_cast<std::uint8_t*>(rows.data) + first * bytes;
    return rows;
  }

  /// Loads lse in base 2 and delta of the thread's rows. Rows without a query head, or whose lse
  /// reaches kLargestLse, get weights of 0.
  __device__ __forceinline__ void load_rows(const HeadRows& rows) {
    const std::int64_t heads_q = std::int64_t{params_.shape.heads_kv} * params_.shape.heads_per_kv;
#pragma unroll
    for (int row = 0; row < tile::kRowsPerThread; ++row) {
      lse_[row] = INFINITY;
      delta_[row] = 0.0f;
      if (!rows.is_head(row)) continue;
      const float lse = *row_at<float>(params_.lse, rows.token(), rows.head_of(row)) * kLog2E;
      if (fabsf(lse) >= kLargestLse) continue;
      lse_[row] = lse;
      delta_[row] = params_.delta[rows.token() * heads_q + rows.head_of(row)];
    }
  }

  __device__ __forceinline__ void step() {
    const int key_row = tile::FragmentPlace(ptx::thread_index() % 128).row;
    shared_.tiles.ring.full[0].wait(tiles_);
    shared_.tiles.ring.full[1].wait(tiles_);
    ptx::fence_async_shared();
    const KeyRows keys = {shared_.keys[0][key_row], shared_.keys[0][key_row + 8]};
    std::uint32_t ds[kLatentRows / 4];
    if constexpr (kIsFirst) {
      make_weights();
      ptx::named_barrier_sync(kLatentStaged, kThreads);
      load_fragments(shared_.ds, ds);
    } else {
      differentiate(ds);
    }
    add_queries(ds);
    add_keys(keys);
    if constexpr (!kIsFirst) ptx::named_barrier_arrive(kLatentRead, kThreads);
    tiles_.advance();
  }

  /// Computes P = 2^(exponent_scale * Q K^T - lse) into shared memory.
  __device__ __forceinline__ void make_weights() const {
    Scores s;
    issue_scores<kLatentDim>(s, shared_.q);
    std::uint32_t is_key[kLoadingWarps];
    bool is_full = true;
#pragma unroll
    for (int i = 0; i < kLoadingWarps; ++i) {
      is_key[i] = shared_.tiles.is_key[0][i];
      is_full &= is_key[i] == kAllKeys;
    }
    if (!is_full) mask_columns<kLatentKeysPerWarp>(s, is_key);
#pragma unroll
    for (int i = 0; i < kLatentRows / 2; ++i) {
      s[i] = ptx::exp2_approx(fmaf(s[i], params_.score.exponent_scale, -lse_[(i / 2) % 2]));
    }
    // The other warpgroup has read P and dS of the tile before.
    ptx::named_barrier_sync(kLatentRead, kThreads);
    stage(shared_.p, s);
    ptx::named_barrier_arrive(kLatentWeights, kThreads);
  }

  /// Computes dS = softmax_scale * P * (dO V^T - delta) into shared memory and as an operand.
  __device__ __forceinline__ void differentiate(std::uint32_t (&packed)[kLatentRows / 4]) const {
    Scores ds;
    issue_scores<kLatentValueDim>(ds, shared_.dout);
    ptx::named_barrier_sync(kLatentWeights, kThreads);
    load_fragments(shared_.p, packed);
#pragma unroll
    for (int i = 0; i < kLatentRows / 4; ++i) {
      const float2 p = ptx::unpack_half2<kType>(packed[i]);
      ds[2 * i] = p.x * (ds[2 * i] - delta_[i % 2]) * params_.score.softmax_scale;
      ds[2 * i + 1] = p.y * (ds[2 * i + 1] - delta_[i % 2]) * params_.score.softmax_scale;
    }
    stage(shared_.ds, ds);
    ptx::named_barrier_arrive(kLatentStaged, kThreads);
    tile::pack_fragments<kType, kLatentRows>(ds, packed);
  }

  /// Multiplies rows of Q or dO by the tile's keys.
  template <int kDepth>
  __device__ __forceinline__ void issue_scores(Scores& scores, const std::uint8_t* rows) const {
    ptx::undefine(scores);
    ptx::wgmma_fence();
    tile::issue_abt<kType, kLatentRows, kDepth>(scores, Rows(rows), Rows(shared_.tiles.rows[0]));
    ptx::wgmma_wait<0>();
    ptx::pin(scores);
  }

  /// Stores P or dS in shared memory, a row for each query head.
  __device__ __forceinline__ void stage(std::uint8_t* panel, const Scores& scores) const {
    const int thread = ptx::thread_index() % 128;
    tile::stage_rows<kType, kLatentRows>(panel, thread / 32 * 16, thread % 32, scores);
    ptx::fence_async_shared();
  }

  /// Loads the other warpgroup's staged scores as an operand, like that of pack_fragments.
  __device__ __forceinline__ void load_fragments(const std::uint8_t* panel,
                                                 std::uint32_t (&packed)[kLatentRows / 4]) const {
    const tile::FragmentPlace place(ptx::thread_index() % 128);
    const std::uint32_t first = ptx::shared_address(panel) + tile::swizzled_offset(place.row, 0) +
                                static_cast<std::uint32_t>(2 * place.column);
#pragma unroll
    for (int c = 0; c < kLatentRows / 8; ++c) {
      const std::uint32_t address = first ^ static_cast<std::uint32_t>(c << 4);
      packed[2 * c] = ptx::load_shared(address);
      packed[2 * c + 1] = ptx::load_shared(address + tile::kSwizzleAtomBytes);
    }
  }

  /// Computes dQ += dS K, the last read of the tile.
  __device__ __forceinline__ void add_queries(std::uint32_t (&packed)[kLatentRows / 4]) {
    const std::uint8_t* tile = shared_.tiles.rows[0];
    ptx::pin(packed);
    ptx::pin(dq_);
    if constexpr (kIsFirst) ptx::pin(dq_rope_);
    ptx::wgmma_fence();
    tile::issue_accumulate<kType, kHalfColumns, kLatentRows>(
        dq_, packed, Columns(tile + kWarpgroup * kHalfPanels * kLatentPanelBytes));
    if constexpr (kIsFirst) {
      tile::issue_accumulate<kType, kRope, kLatentRows>(
          dq_rope_, packed, Columns(tile + kValuePanels * kLatentPanelBytes));
    }
    ptx::wgmma_wait<0>();
    ptx::pin(packed);
    ptx::pin(dq_);
    if constexpr (kIsFirst) ptx::pin(dq_rope_);
    arrive_warp(shared_.tiles.ring.empty.at(tiles_));
  }

  /// Adds dS^T Q, and P^T dO in the columns of the value, to the keys' gradients.
  __device__ __forceinline__ void add_keys(const KeyRows& keys) const {
#pragma unroll 1
    for (int first = kFirstColumn; first < kFirstColumn + kHalfColumns; first += kColumns) {
      const int offset = first / tile::kPanelElements * kLatentPanelBytes;
      float sums[kColumns / 2];
      ptx::undefine(sums);
      ptx::wgmma_fence();
      tile::issue_atb<kType, kColumns, kLatentRows>(sums, Columns(shared_.ds),
                                                    Columns(shared_.q + offset));
      tile::issue_add_atb<kType, kColumns, kLatentRows>(sums, Columns(shared_.p),
                                                        Columns(shared_.dout + offset));
      put(keys, first, sums);
    }
    if constexpr (!kIsFirst) {
      float sums[kRope / 2];
      ptx::undefine(sums);
      ptx::wgmma_fence();
      tile::issue_atb<kType, kRope, kLatentRows>(
          sums, Columns(shared_.ds), Columns(shared_.q + kValuePanels * kLatentPanelBytes));
      put(keys, kLatentValueDim, sums);
    }
  }

  /// Waits for the products with gradients of columns from `first` on, and adds them. Four lanes
  /// hold two neighbouring chunks of 8 columns in pairs; even lanes take the first chunk and odd
  /// lanes the second, so that each adds 16 bytes.
  template <int kCount>
  __device__ __forceinline__ void put(const KeyRows& keys, int first, float (&sums)[kCount]) const {
    ptx::wgmma_wait<0>();
    ptx::pin(sums);
    const int column = ptx::thread_index() % 4 * 2;
    const bool is_odd = column % 4 != 0;
    const int stride = params_.shape.heads_kv * kLatentDim;
#pragma unroll
    for (int row = 0; row < tile::kRowsPerThread; ++row) {
      // Hidden from the compiler, or it would keep addresses in registers during the products.
      auto key = static_cast<std::uint32_t>(keys[row]);
      ptx::hide(key);
      const bool is_key = static_cast<std::int32_t>(key) != kNoKey;
      float* target = params_.dk_sums +
                      std::int64_t{is_key ? static_cast<std::int32_t>(key) : 0} * stride +
                      kv_head_ * kLatentDim + first + column + (is_odd ? 6 : 0);
#pragma unroll
      for (int c = 0; c < kCount / 4; c += 2) {
        const float* low = sums + 4 * c + 2 * row;
        const float* high = low + 4;
        const float x = __shfl_xor_sync(0xffffffffu, is_odd ? low[0] : high[0], 1);
        const float y = __shfl_xor_sync(0xffffffffu, is_odd ? low[1] : high[1], 1);
        if (!is_key) continue;
        put_key_row<kHasParts>(target + 8 * c, is_odd ? x : low[0], is_odd ? y : low[1],
                               is_odd ? high[0] : x, is_odd ? high[1] : y);
      }
    }
  }

  LatentBackwardStorage& shared_;
  const ListedBackwardParams& params_;
  std::int32_t kv_head_ = 0;
  RingPlace<1> queries_;
  RingPlace<1> tiles_;
  float lse_[tile::kRowsPerThread];
  float delta_[tile::kRowsPerThread];
  float dq_[kHalfColumns / 2];
  float dq_rope_[kIsFirst ? kRope / 2 : 1];
};

}  // namespace magi::sm90
