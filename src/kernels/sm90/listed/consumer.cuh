// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/copy.cuh"
#include "kernels/sm90/listed/epilogue.cuh"
#include "kernels/sm90/listed/mask_columns.cuh"
#include "kernels/sm90/listed/shared.cuh"
#include "kernels/tile/gemm.cuh"

namespace magi::sm90 {

/// One warpgroup: 64 query heads of an item, O in registers from the first to the last tile.
template <ListedConfig kC>
class ListedConsumer {
 public:
  __device__ __forceinline__ ListedConsumer(ListedStorage<kC>& shared,
                                            const ListedForwardParams& params, int warpgroup)
      : shared_(shared), params_(params), warpgroup_(warpgroup), mask_(params.shape, warpgroup) {}

  __device__ __forceinline__ void run() {
    if (warpgroup_ == kC.consumers - 1) signal_pingpong();
    for (auto i = static_cast<std::int32_t>(blockIdx.x); i < params_.shape.num_items;
         i += static_cast<std::int32_t>(gridDim.x)) {
      const int num_tiles = wait_queries();
      state_ = {};
#pragma unroll
      for (int j = 0; j < kC.dim / 2; ++j) out_[j] = 0.0f;
      if (num_tiles > 0) {
        walk_tiles(num_tiles);
      } else {
        release_queries();
      }
      ListedEpilogue<kC>(params_, ListedItem(params_.shape, i), warpgroup_).write(state_, out_);
    }
  }

 private:
  using Scores = float[kC.keys / 2];

  /// Walks the tiles. P V of each but the last runs beside the scores of the next tile.
  __device__ __forceinline__ void walk_tiles(int num_tiles) {
    first_step(num_tiles == 1);
    for (int i = 1; i < num_tiles; ++i) step(i == num_tiles - 1);
    wait_tile(shared_.v_ring, values_);
    issue_values();
    finish_values();
  }

  __device__ __forceinline__ void first_step(bool is_last) {
    Scores scores;
    wait_tile(shared_.k_ring, keys_);
    wait_pingpong();
    issue_scores(scores);
    signal_pingpong();
    ptx::wgmma_wait<0>();
    ptx::pin(scores);
    finish_scores(scores, is_last);
    tile::pack_fragments<kC.type, kC.keys>(scores, packed_);
  }

  __device__ __forceinline__ void step(bool is_last) {
    Scores scores;
    // V arrives with K: one fence serves both, and none is issued while the other warpgroup waits.
    shared_.k_ring.wait_full(keys_);
    wait_tile(shared_.v_ring, values_);
    wait_pingpong();
    issue_scores(scores);
    issue_values();
    signal_pingpong();
    ptx::wgmma_wait<1>();
    ptx::pin(scores);
    const bool is_moved = finish_scores(scores, is_last);
    finish_values();
    ptx::pin(scores);
    tile::pack_fragments<kC.type, kC.keys>(scores, packed_);
    if (is_moved) state_.rescale_rows(out_);
  }

  /// Computes P from the scores, in float32. Returns true if O must be rescaled.
  __device__ __forceinline__ bool finish_scores(Scores& scores, bool is_last) {
    mask_.load(shared_.is_key[keys_.stage()]);
    arrive_warp(shared_.k_ring.empty.at(keys_));
    keys_.advance();
    if (is_last) release_queries();
    mask_.apply(scores);
    const bool is_moved = state_.template raise_base<kC.keys>(scores, params_.score);
    state_.template exponentiate<kC.keys>(scores, params_.score);
    return is_moved;
  }

  /// Waits for Q of the next item, and returns the number of its tiles.
  __device__ __forceinline__ int wait_queries() {
    shared_.q_ring.wait_full(queries_);
    ptx::fence_async_shared();
    return ptx::uniform(shared_.num_tiles[queries_.stage()]);
  }
  __device__ __forceinline__ void release_queries() {
    arrive_warp(shared_.q_ring.empty.at(queries_));
    queries_.advance();
  }

  /// Waits for a tile. Its copies are ordinary writes; the fence makes them visible to products.
  __device__ __forceinline__ void wait_tile(GatherRing<kC.stages>& ring,
                                            RingPlace<kC.stages> place) const {
    ring.wait_full(place);
    ptx::fence_async_shared();
  }

  __device__ __forceinline__ void issue_scores(Scores& scores) const {
    const tile::KMajor<kC.rows()> q(shared_.q[queries_.stage()] +
                                    warpgroup_ * 64 * tile::kPanelRowBytes);
    const tile::KMajor<kC.keys> k(shared_.k[keys_.stage()]);
    ptx::wgmma_fence();
    tile::issue_abt<kC.type, kC.keys, kC.dim>(scores, q, k);
  }

  __device__ __forceinline__ void issue_values() {
    const tile::MnMajor<kC.keys> v(shared_.v[values_.stage()]);
    ptx::pin(packed_);
    ptx::pin(out_);
    ptx::wgmma_fence();
    tile::issue_accumulate<kC.type, kC.dim, kC.keys>(out_, packed_, v);
  }

  __device__ __forceinline__ void finish_values() {
    ptx::wgmma_wait<0>();
    ptx::pin(packed_);
    ptx::pin(out_);
    arrive_warp(shared_.v_ring.empty.at(values_));
    values_.advance();
  }

  /// Two warpgroups alternate (ping-pong) in issuing products, so that one multiplies while the
  /// other exponentiates. Both walk the same tiles.
  __device__ __forceinline__ void wait_pingpong() const {
    if constexpr (kC.consumers == 2) ptx::named_barrier_sync(kListedPingpong + warpgroup_, 256);
  }
  __device__ __forceinline__ void signal_pingpong() const {
    if constexpr (kC.consumers == 2)
      ptx::named_barrier_arrive(kListedPingpong + 1 - warpgroup_, 256);
  }

  ListedStorage<kC>& shared_;
  const ListedForwardParams& params_;
  const int warpgroup_;
  TileMask<kC> mask_;
  RingPlace<kC.q_stages> queries_;
  RingPlace<kC.stages> keys_;
  RingPlace<kC.stages> values_;
  RowState<kC.softmax()> state_;
  float out_[kC.dim / 2];
  std::uint32_t packed_[kC.keys / 4];
};

}  // namespace magi::sm90
