// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/backward/blocks/block_dq_params.hpp"
#include "kernels/sm90/backward/packed_rows.cuh"
#include "kernels/sm90/forward/block_scheduler.cuh"
#include "kernels/sm90/forward/run_mask.cuh"
#include "kernels/sm90/global_memory.cuh"
#include "kernels/sm90/half_rows.cuh"
#include "kernels/tile/gemm.cuh"

namespace magi::sm90 {

/// One warpgroup: 64 rows of the q tile. Q, dO and the sum of dQ stay in registers from the first
/// to the last tile of keys.
template <ForwardConfig kC>
class BlockDqConsumer {
  static_assert(kC.dim_qk == kC.dim_v && kC.keys == 64);

 public:
  __device__ __forceinline__ BlockDqConsumer(BlockStorage<kC>& shared, const BlockDqParams& params,
                                             int warpgroup)
      : shared_(shared.forward), params_(params), warpgroup_(warpgroup) {}

  __device__ __forceinline__ void run() {
    wait_message();
    while ((ptx::uniform(message().flags) & kEndOfItems) == 0) {
      clear();
      if (ptx::uniform(message().num_tiles) > 0) walk_item();
      write();
      next_message();
    }
  }

 private:
  using Scores = float[kC.keys / 2];
  using Rows = std::uint32_t[kC.dim_qk / 4];  ///< a thread's part of 64 rows, as A operand

  __device__ __forceinline__ const RunMessage& message() const {
    return shared_.messages[message_.stage()];
  }
  __device__ __forceinline__ void wait_message() { shared_.message_ring.wait_full(message_); }
  __device__ __forceinline__ void next_message() {
    arrive_warp(shared_.message_ring.empty.at(message_));
    message_.advance();
    wait_message();
  }
  /// Computed at each use, because the sums leave few registers.
  __device__ __forceinline__ static tile::FragmentPlace place() {
    return tile::FragmentPlace(ptx::thread_index() % 128);
  }
  __device__ __forceinline__ int row_in_tile(int row) const {
    return 64 * warpgroup_ + place().row + 8 * row;
  }
  __device__ __forceinline__ int token_of(int row) const {
    return message().token_begin + (row_in_tile(row) >> params_.walk.forward.packed_shift);
  }
  __device__ __forceinline__ int head_of(int row) const {
    return message().head_begin + (row_in_tile(row) & (params_.walk.forward.packed_heads - 1));
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kC.dim_qk / 2; ++i) dq_[i] = 0.0f;
  }

  __device__ __forceinline__ void walk_item() {
    load_vectors();
    q_place_ = queries_;
    shared_.q_rings[0].wait_full(queries_);
    queries_.advance();
    take_rows(dout_);
    bool is_first = true;
    while (true) {
      const int num_tiles = ptx::uniform(message().num_tiles);
      const int full_end = ptx::uniform(message().full_end);
      for (int i = 0; i < num_tiles; ++i) {
        step(i >= full_end, is_first);
        is_first = false;
      }
      if ((ptx::uniform(message().flags) & kLastRun) != 0) break;
      next_message();
    }
    ptx::wgmma_wait<0>();
    // NOTE: products have read these registers until here; ptxas before 13.3 may not know that.
    ptx::pin(packed_);
    ptx::pin(dout_);
    ptx::pin(dq_);
    release(keys_);
    arrive_warp(shared_.q_rings[0].empty.at(q_place_));
  }

  /// Reads lse_log2 and delta of the thread's two rows, past the L1 cache: this kernel may have
  /// started while the one that writes them was running.
  __device__ __forceinline__ void load_vectors() {
#pragma unroll
    for (int row = 0; row < tile::kRowsPerThread; ++row) {
      const int token = token_of(row);
      lse_log2_[row] = -kNoKeys / params_.walk.forward.score.exponent_scale;
      delta_[row] = 0.0f;
      if (token >= params_.packed.rows_q) continue;
      const std::int64_t at = place_of(params_.packed, token, head_of(row));
      lse_log2_[row] = __ldcg(params_.lse_log2 + at);
      delta_[row] = __ldcg(params_.delta + at);
    }
  }

  /// Loads the next rows of Q or dO from the ring to registers.
  __device__ __forceinline__ void take_rows(Rows& rows) {
    auto& ring = shared_.q_rings[0];
    ring.wait_full(queries_);
    const std::uint8_t* source = shared_.q[queries_.stage()];
    const tile::FragmentPlace at = place();
    const int first = 64 * warpgroup_ + at.row;
#pragma unroll
    for (int i = 0; i < kC.dim_qk / 4; ++i) {
      const int chunk = i / 2;
      const std::uint8_t* panel = source + chunk / 8 * (kC.rows() * tile::kPanelRowBytes);
      rows[i] = *reinterpret_cast<const std::uint32_t*>(
          panel + tile::swizzled_offset(first + 8 * (i % 2), chunk % 8) + 2 * at.column);
    }
    arrive_warp(ring.empty.at(queries_));
    queries_.advance();
  }

  __device__ __forceinline__ void release(RingPlace<kC.kv_stages> tile) {
    arrive_warp(shared_.kv_ring.empty.at(tile));
  }
  __device__ __forceinline__ const std::uint8_t* tile_at(RingPlace<kC.kv_stages> place) const {
    return shared_.kv + kC.k_offset(place.stage());
  }

  __device__ __forceinline__ void issue_scores(Scores& scores) {
    shared_.kv_ring.wait_full(tiles_);
#pragma unroll
    for (int i = 0; i < kC.keys / 2; ++i) scores[i] = lse_log2_[(i / 2) % 2];
    ptx::pin(scores);
    const tile::KMajor<kC.rows()> q(shared_.q[q_place_.stage()] +
                                    warpgroup_ * 64 * tile::kPanelRowBytes);
    ptx::wgmma_fence();
    tile::issue_abt<kC.type, kC.keys, kC.dim_qk, true>(scores, q,
                                                       tile::KMajor<kC.keys>(tile_at(tiles_)));
  }

  /// Issues a product of the item's rows with a tile's; accumulators begin at a value per row.
  __device__ __forceinline__ void issue(const Rows& rows, const float (&begin)[2],
                                        RingPlace<kC.kv_stages> tile, Scores& scores) {
    shared_.kv_ring.wait_full(tile);
#pragma unroll
    for (int i = 0; i < kC.keys / 2; ++i) scores[i] = begin[(i / 2) % 2];
    ptx::pin(scores);
    ptx::wgmma_fence();
    tile::issue_accumulate_abt<kC.type, kC.keys, kC.dim_qk>(scores, rows,
                                                            tile::KMajor<kC.keys>(tile_at(tile)));
  }

  /// One tile of keys. dQ of the tile before it may still be in flight.
  ///
  /// | issue  | awaits | in flight | then                                                      |
  /// |--------|--------|-----------|-----------------------------------------------------------|
  /// | S      | K full | dQ, S     |                                                           |
  /// | dP     | V full | dQ, S, dP | wait dQ and S; hand the K before back; P = 2^(scale * S)   |
  /// | dQ     |        | dQ        | before: wait dP; hand V back; dS = P * dP is packed       |
  __device__ __forceinline__ void step(bool is_masked, bool is_first) {
    Scores p;
    Scores dp;
    issue_scores(p);
    issue(dout_, delta_, tiles_.next(), dp);
    ptx::wgmma_wait<1>();
    ptx::pin(p);
    ptx::pin(packed_);
    if (!is_first) release(keys_);
    const float scale = params_.walk.forward.score.exponent_scale;
#pragma unroll
    for (float& x : p) x *= scale;
    if (is_masked) {
      mask_by_run<kC.keys>(p, message(), {64 * warpgroup_, message().k_end - kC.keys},
                           params_.walk.forward.packed_shift);
    }
#pragma unroll
    for (float& x : p) x = ptx::exp2_approx(x);
    ptx::wgmma_wait<0>();
    ptx::pin(dp);
    release(tiles_.next());
#pragma unroll
    for (int i = 0; i < kC.keys / 2; ++i) p[i] *= dp[i];
    tile::pack_fragments<kC.type, kC.keys>(p, packed_);
    ptx::pin(packed_);
    ptx::pin(dq_);
    ptx::wgmma_fence();
    tile::issue_accumulate<kC.type, kC.dim_qk, kC.keys>(dq_, packed_,
                                                        tile::MnMajor<kC.keys>(tile_at(tiles_)));
    keys_ = tiles_;
    tiles_.advance();
    tiles_.advance();
  }

  /// Writes the item's rows of dq.
  __device__ __forceinline__ void write() {
    const float scale = params_.walk.forward.score.softmax_scale;
#pragma unroll
    for (int i = 0; i < kC.dim_qk / 2; ++i) dq_[i] *= scale;
#pragma unroll
    for (int row = 0; row < tile::kRowsPerThread; ++row) {
      const std::int64_t token = token_of(row);
      const int num_columns = token < params_.packed.rows_q ? params_.dim : 0;
      if (params_.dq.is_float()) {
        write_float_row(row, num_columns, row_at<float>(params_.dq, token, head_of(row)));
      } else {
        write_half_row<kC.type>(dq_, row, place().column, num_columns,
                                row_at<std::uint16_t>(params_.dq, token, head_of(row)));
      }
    }
  }
  __device__ __forceinline__ void write_float_row(int row, int num_columns, float* target) const {
    const int column = place().column;
#pragma unroll
    for (int c = 0; c < kC.dim_qk / 8; ++c) {
      if (8 * c + column >= num_columns) continue;
      auto* pair = reinterpret_cast<float2*>(target + 8 * c + column);
      const float2 before = params_.is_adding ? *pair : make_float2(0.0f, 0.0f);
      const int i = 4 * c + 2 * row;
      *pair = make_float2(before.x + dq_[i], before.y + dq_[i + 1]);
    }
  }

  SharedStorage<kC>& shared_;
  const BlockDqParams& params_;
  const int warpgroup_;
  RingPlace<kMessageStages> message_;
  RingPlace<kC.q_stages> queries_;
  RingPlace<kC.kv_stages> tiles_;  ///< K of the next tile; its V is after it
  RingPlace<kC.kv_stages> keys_;   ///< K of the tile whose dQ may be under way
  float lse_log2_[tile::kRowsPerThread];
  float delta_[tile::kRowsPerThread];
  RingPlace<kC.q_stages> q_place_;
  Rows dout_;
  float dq_[kC.dim_qk / 2];
  std::uint32_t packed_[kC.keys / 4];  ///< dS as A operand
};

}  // namespace magi::sm90
