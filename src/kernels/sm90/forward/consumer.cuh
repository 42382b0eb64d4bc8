// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/copy.cuh"
#include "kernels/sm90/forward/epilogue.cuh"
#include "kernels/sm90/forward/params.hpp"
#include "kernels/sm90/forward/shared.cuh"
#include "kernels/sm90/forward/softmax.cuh"
#include "kernels/tile/gemm.cuh"

namespace magi::sm90 {

/// One warpgroup: 64 rows of the q tile, O in registers from the first to the last tile.
template <ForwardConfig kC>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(SharedStorage<kC>& shared, const ForwardParams& params,
                                      int warpgroup)
      : shared_(shared),
        params_(params),
        warpgroup_(warpgroup),
        place_(static_cast<int>(threadIdx.x) % 128) {}

  __device__ __forceinline__ void run() {
    if constexpr (kC.schedule != Schedule::Free) {
      if (warpgroup_ == kC.consumers - 1) pass_turn();
    }
    wait_message();
    while ((ptx::uniform(message().flags) & kEndOfItems) == 0) {
      ptx::mbarrier_wait(shared_.q_ring.full[stage_of<kC.q_stages>(num_items_)],
                         parity_of<kC.q_stages>(num_items_));
      start_item();
      if (ptx::uniform(message().num_tiles) > 0) walk_item();
      finish_item();
      next_message();
    }
    ptx::store_wait_read<0>();
  }

 private:
  template <int kKeys>
  using Scores = float[kKeys / 2];

  /// The present run. It stays in shared memory until the run is over: what only masked tiles and
  /// the epilogue need costs no registers.
  __device__ __forceinline__ const RunMessage& message() const {
    return shared_.messages[stage_of<kMessageStages>(num_messages_)];
  }
  __device__ __forceinline__ void wait_message() {
    ptx::mbarrier_wait(shared_.message_ring.full[stage_of<kMessageStages>(num_messages_)],
                       parity_of<kMessageStages>(num_messages_));
  }
  __device__ __forceinline__ void next_message() {
    release(shared_.message_ring.empty[stage_of<kMessageStages>(num_messages_)]);
    ++num_messages_;
    wait_message();
  }

  /// One arrival of this warp, after all its lanes are done with what the barrier guards.
  __device__ __forceinline__ void release(ptx::Mbarrier& barrier) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(barrier);
  }

  __device__ __forceinline__ void wait_turn() const {
    if constexpr (kC.schedule != Schedule::Free) ptx::named_barrier_sync(kTurn + warpgroup_, 256);
  }
  __device__ __forceinline__ void pass_turn() const {
    if constexpr (kC.schedule != Schedule::Free) {
      const int next = warpgroup_ + 1 == kC.consumers ? 0 : warpgroup_ + 1;
      ptx::named_barrier_arrive(kTurn + next, 256);
    }
  }

  __device__ __forceinline__ void start_item() {
    state_ = RowState<kC.has_softcap>{};
#pragma unroll
    for (int i = 0; i < kC.dim / 2; ++i) out_[i] = 0.0f;
  }

  /// All tiles of an item, run after run, high keys to low.
  __device__ __forceinline__ void walk_item() {
    int tile_idx = 0;
    if constexpr (kC.schedule != Schedule::Rotation) {
      first_tile();
      tile_idx = 1;
    }
    while (true) {
      const int num_tiles = ptx::uniform(message().num_tiles);
      const int full_begin = ptx::uniform(message().full_begin);
      const int full_end = ptx::uniform(message().full_end);
      for (; tile_idx < num_tiles; ++tile_idx) {
        const bool is_masked = tile_idx < full_begin || tile_idx >= full_end;
        next_tile<kC.keys>(tile_key(tile_idx), is_masked);
      }
      if ((ptx::uniform(message().flags) & kLastRun) != 0) break;
      next_message();
      tile_idx = 0;
    }
    if ((ptx::uniform(message().flags) & kShortTile) != 0) {
      next_tile<kTrimmedKeys>(tile_key(message().num_tiles - 1) - kTrimmedKeys, true);
      drain<kTrimmedKeys>();
    } else {
      drain<kC.keys>();
    }
  }

  /// S = Q K^T of one tile, issued only.
  template <int kKeys>
  __device__ __forceinline__ void issue_scores(Scores<kKeys>& scores) {
    const std::uint8_t* rows = shared_.q[stage_of<kC.q_stages>(num_items_)];
    const tile::KMajor<kC.rows()> q(rows + warpgroup_ * 64 * tile::kPanelRowBytes);
    const tile::KMajor<kC.keys> k(shared_.k[stage_of<kC.kv_stages>(num_keys_)]);
    ptx::wgmma_fence();
    tile::issue_abt<kC.type, kKeys, kC.dim>(scores, q, k);
  }

  __device__ __forceinline__ void wait_keys() {
    ptx::mbarrier_wait(shared_.k_ring.full[stage_of<kC.kv_stages>(num_keys_)],
                       parity_of<kC.kv_stages>(num_keys_));
  }

  /// O += P V of the tile whose P is packed, issued only.
  template <int kKeys>
  __device__ __forceinline__ void issue_values() {
    const int stage = stage_of<kC.kv_stages>(num_values_);
    ptx::mbarrier_wait(shared_.v_ring.full[stage], parity_of<kC.kv_stages>(num_values_));
    const tile::MnMajor<kC.keys> v(shared_.v[stage]);
    ptx::pin(packed_);
    ptx::pin(out_);
    ptx::wgmma_fence();
    tile::issue_accumulate<kC.type, kC.dim, kKeys>(out_, packed_, v);
  }

  __device__ __forceinline__ void release_keys() {
    release(shared_.k_ring.empty[stage_of<kC.kv_stages>(num_keys_)]);
    ++num_keys_;
  }
  __device__ __forceinline__ void release_values() {
    release(shared_.v_ring.empty[stage_of<kC.kv_stages>(num_values_)]);
    ++num_values_;
  }

  /// Waits for the products that wrote O. The pin keeps P's registers until here; whoever packs the
  /// next P pins what it is made of.
  __device__ __forceinline__ void wait_values() {
    ptx::wgmma_wait<0>();
    ptx::pin(packed_);
    ptx::pin(out_);
    release_values();
  }

  /// Masks the tile of keys [key, key + kKeys) by the present run's band.
  template <int kKeys>
  __device__ __forceinline__ void mask_scores(Scores<kKeys>& scores, int key) {
    const RunMessage& run = message();
    int low[tile::kRowsPerThread];
    int high[tile::kRowsPerThread];
#pragma unroll
    for (int row = 0; row < tile::kRowsPerThread; ++row) {
      const int row_in_tile = 64 * warpgroup_ + place_.row + 8 * row;
      const int token = run.token_begin + (row_in_tile >> params_.packed_shift);
      const bool is_inside = token >= run.q0 && token < run.q1;
      low[row] = (is_inside ? max(run.k0, token + run.d_min) : 0) - place_.column - key;
      high[row] = (is_inside ? min(run.k1, token + run.d_max + 1) : 0) - place_.column - key;
    }
    tile::mask_row<kKeys, 0>(scores, low[0], high[0]);
    tile::mask_row<kKeys, 1>(scores, low[1], high[1]);
  }

  /// Scores become P, in float; `key` is the tile's first key.
  template <int kKeys>
  __device__ __forceinline__ void absorb(Scores<kKeys>& scores, int key, bool is_masked) {
    if (is_masked) mask_scores<kKeys>(scores, key);
    is_moved_ = state_.template raise_base<kKeys>(scores, params_.score);
    state_.template exponentiate<kKeys>(scores, params_.score);
  }

  template <int kKeys>
  __device__ __forceinline__ void pack(Scores<kKeys>& scores) {
    ptx::pin(scores);
    tile::pack_fragments<kC.type, kKeys>(scores, packed_);
  }

  __device__ __forceinline__ void rescale_out() {
    if (is_moved_) state_.rescale_rows(out_);
  }

  __device__ __forceinline__ int tile_key(int tile_idx) const {
    return message().k_end - (tile_idx + 1) * kC.keys;
  }

  /// The first tile of an item: there is no P yet to multiply meanwhile.
  __device__ __forceinline__ void first_tile() {
    const bool is_masked =
        ptx::uniform(message().full_begin) > 0 || ptx::uniform(message().full_end) <= 0;
    Scores<kC.keys> scores;
    wait_keys();
    issue_scores<kC.keys>(scores);
    ptx::wgmma_wait<0>();
    ptx::pin(scores);
    release_keys();
    release_earlier_queries();
    absorb<kC.keys>(scores, tile_key(0), is_masked);
    pack<kC.keys>(scores);
  }

  /// S of one tile together with O += P V of the tile before it, which is full-width.
  template <int kKeys>
  __device__ __forceinline__ void paired_tile(int key, bool is_masked) {
    Scores<kKeys> scores;
    wait_keys();
    wait_turn();
    issue_scores<kKeys>(scores);
    issue_values<kC.keys>();
    pass_turn();
    ptx::wgmma_wait<1>();
    ptx::pin(scores);
    release_keys();
    absorb<kKeys>(scores, key, is_masked);
    wait_values();
    pack<kKeys>(scores);
    rescale_out();
  }

  /// Both products of a tile one after the other; the exponentials are taken in turns.
  template <int kKeys>
  __device__ __forceinline__ void lone_tile(int key, bool is_masked) {
    Scores<kKeys> scores;
    wait_keys();
    issue_scores<kKeys>(scores);
    ptx::wgmma_wait<0>();
    ptx::pin(scores);
    release_keys();
    release_earlier_queries();
    wait_turn();
    absorb<kKeys>(scores, key, is_masked);
    pack<kKeys>(scores);
    pass_turn();
    rescale_out();
    issue_values<kKeys>();
    wait_values();
  }

  template <int kKeys>
  __device__ __forceinline__ void next_tile(int key, bool is_masked) {
    if constexpr (kC.schedule == Schedule::Rotation) {
      lone_tile<kKeys>(key, is_masked);
    } else {
      paired_tile<kKeys>(key, is_masked);
    }
  }

  /// O += P V of the item's last tile, where it is not yet added.
  template <int kKeys>
  __device__ __forceinline__ void drain() {
    if constexpr (kC.schedule != Schedule::Rotation) {
      issue_values<kKeys>();
      wait_values();
    }
  }

  /// The previous item's out has left its Q buffer by now: hand the buffer back.
  __device__ __forceinline__ void release_earlier_queries() {
    if (!has_earlier_) return;
    ptx::store_wait_read<0>();
    release(shared_.q_ring.empty[stage_of<kC.q_stages>(num_items_ - 1)]);
    has_earlier_ = false;
  }

  __device__ __forceinline__ void finish_item() {
    release_earlier_queries();
    const Epilogue<kC> epilogue(params_, place_, warpgroup_);
    ptx::named_barrier_sync(kEpilogue + warpgroup_, 128);
    epilogue.write(out_, state_, message().token_begin, message().head_begin,
                   shared_.q[stage_of<kC.q_stages>(num_items_)]);
    ++num_items_;
    has_earlier_ = true;
    if constexpr (kC.q_stages == 1) release_earlier_queries();
  }

  SharedStorage<kC>& shared_;
  const ForwardParams& params_;
  const int warpgroup_;
  const tile::FragmentPlace place_;
  std::uint32_t num_messages_ = 0;  ///< done with so far; these counts place each ring
  std::uint32_t num_items_ = 0;
  std::uint32_t num_keys_ = 0;
  std::uint32_t num_values_ = 0;
  bool has_earlier_ = false;  ///< the previous item still holds its Q buffer
  RowState<kC.has_softcap> state_;
  bool is_moved_ = false;  ///< the tile's scores moved the base of the exponentials
  float out_[kC.dim / 2];
  std::uint32_t packed_[kC.keys / 4];
};

}  // namespace magi::sm90
