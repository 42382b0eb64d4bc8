// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/copy.cuh"
#include "kernels/sm90/forward/epilogue.cuh"
#include "kernels/sm90/listed/head_rows.cuh"
#include "kernels/sm90/listed/latent_shared.cuh"
#include "kernels/sm90/listed/mask_columns.cuh"
#include "kernels/tile/gemm.cuh"

namespace magi::sm90 {

/// One of two warpgroups. It owns half of the value columns of 64 query heads and the scores of
/// every second tile. While one warpgroup computes P of its tile, the other multiplies.
template <DType kType, int kWarpgroup>
class LatentConsumer {
 public:
  __device__ __forceinline__ LatentConsumer(LatentStorage& shared,
                                            const ListedForwardParams& params)
      : shared_(shared), params_(params) {}

  __device__ __forceinline__ void run() {
    for (auto i = static_cast<std::int32_t>(blockIdx.x); i < params_.shape.num_items;
         i += static_cast<std::int32_t>(gridDim.x)) {
      shared_.q_ring.wait_full(queries_);
      ptx::fence_async_shared();
      const int num_tiles = ptx::uniform(shared_.num_tiles);
      state_ = {};
#pragma unroll
      for (int j = 0; j < kHalfColumns / 2; ++j) out_[j] = 0.0f;
      walk_tiles(num_tiles);
      arrive_warp(shared_.q_ring.empty.at(queries_));
      write(HeadRows(params_.shape, ListedItem(params_.shape, i),
                     ListedItem(params_.shape, i).group * kLatentRows));
      queries_.advance();
    }
  }

 private:
  static constexpr ForwardConfig kSoftmax{.type = kType, .features = FeatureSet::AnyOut};
  static constexpr std::uint32_t kAllKeys = (1u << kLatentKeysPerWarp) - 1;
  static constexpr int kThreads = 128 * kLatentConsumers;
  using Scores = float[kLatentRows / 2];
  using Operand = tile::KMajor<kLatentRows>;

  __device__ __forceinline__ std::uint8_t* panel(int index) const {
    return shared_.tiles.rows[tiles_.stage()] + index * kLatentPanelBytes;
  }
  __device__ __forceinline__ const std::uint8_t* query_panel(int index) const {
    return shared_.q + index * kLatentPanelBytes;
  }
  /// The thread's part of P; equal threads of both warpgroups hold the same elements. It overwrites
  /// the tile's last panel, which holds no value columns.
  __device__ __forceinline__ uint4* fragments() const {
    return reinterpret_cast<uint4*>(panel(kValuePanels)) + ptx::thread_index() % 128;
  }
  /// Waits for a part of a tile, and makes its copies, ordinary writes, visible to products.
  __device__ __forceinline__ void wait_part(int part) const {
    shared_.tiles.ring.full[part].wait(tiles_);
    ptx::fence_async_shared();
  }

  __device__ __forceinline__ void walk_tiles(int num_tiles) {
    int t = 0;
    if (num_tiles > 0 && tiles_.stage() == kWarpgroup) {
      attend_to_own<false>();
      ++t;
    }
    for (; t + 1 < num_tiles; t += 2) {
      attend_to_other();
      attend_to_own<true>();
    }
    if (t == num_tiles) return;
    attend_to_other();
    finish_values(1 - kWarpgroup);
  }

  /// Computes P of the tile, publishes it to the other warpgroup, and adds P V. `kIsBehind`:
  /// products of the other's tile are in flight. If this tile is loaded, its products follow.
  template <bool kIsBehind>
  __device__ __forceinline__ void attend_to_own() {
    Scores scores;
    RingBarriers<LatentStorage::kStages>* full = shared_.tiles.ring.full;
    const bool is_here = kIsBehind && full[0].test(tiles_) && full[1].test(tiles_);
    if (kIsBehind && !is_here) finish_values(1 - kWarpgroup);
    issue_scores(scores);
    if (is_here) finish_values<2>(1 - kWarpgroup);
    ptx::wgmma_wait<0>();
    ptx::pin(scores);
    mask(scores);
    const bool is_moved = state_.template raise_base<kLatentRows>(scores, params_.score);
    state_.template exponentiate<kLatentRows>(scores, params_.score);
    tile::pack_fragments<kType, kLatentRows>(scores, packed_);
    publish();
    if (is_moved) state_.rescale_rows(out_);
    issue_values();
    finish_values(kWarpgroup);
    tiles_.advance();
  }

  /// Issues the addition of P V of a tile whose P the other warpgroup computed.
  __device__ __forceinline__ void attend_to_other() {
    ptx::named_barrier_sync(kLatentPublished + 1 - kWarpgroup, kThreads);
    wait_part(0);
    wait_part(1);
    const uint4* parts = fragments();
#pragma unroll
    for (int i = 0; i < kLatentRows / 16; ++i) {
      const uint4 part = parts[128 * i];
      packed_[4 * i] = part.x;
      packed_[4 * i + 1] = part.y;
      packed_[4 * i + 2] = part.z;
      packed_[4 * i + 3] = part.w;
    }
    if (take_base()) state_.rescale_rows(out_);
    issue_values();
    tiles_.advance();
  }

  /// Issues O += P V in the columns of this warpgroup.
  __device__ __forceinline__ void issue_values() {
    const tile::MnMajor<kLatentRows> values(panel(kWarpgroup * kHalfPanels));
    ptx::pin(packed_);
    ptx::pin(out_);
    ptx::wgmma_fence();
    tile::issue_accumulate<kType, kHalfColumns, kLatentRows>(out_, packed_, values);
  }
  /// Waits for that, except for the last kPending groups of products, and releases the tile.
  template <int kPending = 0>
  __device__ __forceinline__ void finish_values(int stage) {
    ptx::wgmma_wait<kPending>();
    ptx::pin(packed_);
    ptx::pin(out_);
    arrive_warp(shared_.tiles.ring.empty.stages[stage]);
  }

  /// Issues S = Q K^T as the parts of the tile arrive.
  __device__ __forceinline__ void issue_scores(Scores& scores) const {
    wait_part(0);
    ptx::undefine(scores);
    ptx::wgmma_fence();
    tile::issue_abt<kType, kLatentRows, kHalfColumns>(scores, Operand(query_panel(0)),
                                                      Operand(panel(0)));
    wait_part(1);
    tile::issue_abt<kType, kLatentRows, kLatentDim - kHalfColumns, true>(
        scores, Operand(query_panel(kHalfPanels)), Operand(panel(kHalfPanels)));
  }

  __device__ __forceinline__ void mask(Scores& scores) const {
    std::uint32_t is_key[kLoadingWarps];
    bool is_full = true;
#pragma unroll
    for (int i = 0; i < kLoadingWarps; ++i) {
      is_key[i] = shared_.tiles.is_key[tiles_.stage()][i];
      is_full &= is_key[i] == kAllKeys;
    }
    if (!is_full) mask_columns<kLatentKeysPerWarp>(scores, is_key);
  }

  /// Publishes P and its base to the other warpgroup.
  __device__ __forceinline__ void publish() const {
    uint4* parts = fragments();
#pragma unroll
    for (int i = 0; i < kLatentRows / 16; ++i) {
      parts[128 * i] =
          make_uint4(packed_[4 * i], packed_[4 * i + 1], packed_[4 * i + 2], packed_[4 * i + 3]);
    }
    const tile::FragmentPlace place(ptx::thread_index() % 128);
    float* base = shared_.base[tiles_.stage()] + place.row;
    if (place.column == 0) {
      base[0] = state_.base[0];
      base[8] = state_.base[1];
    }
    ptx::named_barrier_arrive(kLatentPublished + kWarpgroup, kThreads);
  }

  /// Continues with the base of the other's tile. Returns whether any of the warp's rows changed
  /// it.
  __device__ __forceinline__ bool take_base() {
    const float* bases =
        shared_.base[tiles_.stage()] + tile::FragmentPlace(ptx::thread_index() % 128).row;
    const float base[tile::kRowsPerThread] = {bases[0], bases[8]};
    const bool is_moved = base[0] != state_.base[0] || base[1] != state_.base[1];
    if (!__any_sync(0xffffffffu, is_moved)) return false;
#pragma unroll
    for (int row = 0; row < tile::kRowsPerThread; ++row) {
      state_.rescale[row] =
          ptx::exp2_approx((state_.base[row] - base[row]) * params_.score.exponent_scale);
      state_.sum[row] *= state_.rescale[row];
      state_.base[row] = base[row];
    }
    return true;
  }

  /// Turns O and sums into out and lse. Each warpgroup has the sums of its own tiles.
  __device__ __forceinline__ void write(const HeadRows& rows) {
    const int row = tile::FragmentPlace(ptx::thread_index() % 128).row;
    float* sums = shared_.sum[queries_.parity()][kWarpgroup];
    const float own[tile::kRowsPerThread] = {tile::sum_over_row(state_.sum[0]),
                                             tile::sum_over_row(state_.sum[1])};
    if (rows.column() == 0) {
      sums[row] = own[0];
      sums[row + 8] = own[1];
    }
    ptx::named_barrier_sync(kLatentSums, kThreads);
    float weight[tile::kRowsPerThread];
#pragma unroll
    for (int i = 0; i < tile::kRowsPerThread; ++i) {
      const float* both = shared_.sum[queries_.parity()][0] + row + 8 * i;
      weight[i] = finish_row(rows, i, both[0] + both[kLatentRows]);
    }
#pragma unroll
    for (int i = 0; i < kHalfColumns / 2; ++i) out_[i] *= weight[(i / 2) % 2];
    StridedRows target = params_.out;
    const int bytes = target.is_float() ? 4 : 2;
    target.data = static_cast<std::uint8_t*>(target.data) + kWarpgroup * kHalfColumns * bytes;
    rows.template store<kType>(target, kHalfColumns, out_);
  }

  /// Writes lse. Returns the factor from a row of O to out.
  __device__ __forceinline__ float finish_row(const HeadRows& rows, int row, float sum) const {
    RowResult result;
    if (sum > 0.0f) {
      result.log_sum = state_.scaled_base(row, params_.score) + ptx::log2_approx(sum);
      result.weights.weight = ptx::reciprocal_approx(sum);
    }
    if (!rows.is_head(row)) return 0.0f;
    const int head = rows.head_of(row);
    if (params_.sink.count > 0) add_sinks(result, params_.sink, rows.token(), head);
    if (rows.column() == 0 && kWarpgroup == 0) {
      *row_at<float>(params_.lse, rows.token(), head) = result.log_sum * kLn2;
    }
    return result.weights.weight;
  }

  LatentStorage& shared_;
  const ListedForwardParams& params_;
  RingPlace<1> queries_;
  RingPlace<LatentStorage::kStages> tiles_;
  RowState<kSoftmax> state_;
  float out_[kHalfColumns / 2];
  std::uint32_t packed_[kLatentRows / 4];
};

}  // namespace magi::sm90
