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
    if constexpr (kC.schedule == Schedule::Turns) {
      if (warpgroup_ == kC.consumers - 1) pass_turn();
    }
    wait_message();
    while ((ptx::uniform(message().flags) & kEndOfItems) == 0) {
      if (ptx::uniform(message().num_tiles) > 0) {
        wait_queries();
        walk_item();
      } else {
        settle();
        wait_queries();
        start_item();
        clear_out();
        finish_item(item_);
      }
      next_message();
    }
    settle();
    ptx::store_wait_read<0>();
  }

 private:
  template <int kKeys>
  using Scores = float[kKeys / 2];

  /// What the epilogue needs of an item besides O.
  struct Item {
    int token_begin = 0;
    int head_begin = 0;
    RowState<kC.has_softcap> state;
  };

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
    if constexpr (kC.schedule == Schedule::Turns) ptx::named_barrier_sync(kTurn + warpgroup_, 256);
  }
  __device__ __forceinline__ void pass_turn() const {
    if constexpr (kC.schedule == Schedule::Turns) {
      const int next = warpgroup_ + 1 == kC.consumers ? 0 : warpgroup_ + 1;
      ptx::named_barrier_arrive(kTurn + next, 256);
    }
  }

  __device__ __forceinline__ void wait_queries() {
    ptx::mbarrier_wait(shared_.q_ring.full[stage_of<kC.q_stages>(num_items_ + has_item_)],
                       parity_of<kC.q_stages>(num_items_ + has_item_));
  }

  __device__ __forceinline__ void start_item() {
    item_ = {.token_begin = ptx::uniform(message().token_begin),
             .head_begin = ptx::uniform(message().head_begin)};
  }

  __device__ __forceinline__ void clear_out() {
#pragma unroll
    for (int i = 0; i < kC.dim / 2; ++i) out_[i] = 0.0f;
  }

  /// All tiles of an item, run after run, high keys to low. The last P is left to be multiplied
  /// with the next item's first scores.
  __device__ __forceinline__ void walk_item() {
    int tile_idx = 1;
    if (has_item_) {
      const Item earlier = item_;
      first_tile<true>();
      if (ptx::uniform(message().num_tiles) >= 2) {
        second_tile(earlier);
        tile_idx = 2;
      } else {
        finish_item(earlier);
        clear_out();
      }
    } else {
      clear_out();
      first_tile<false>();
    }
    has_item_ = true;
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
    }
    // An item of one tile has not done it on the way, and the producer waits for this buffer before
    // it sends the next message.
    release_earlier_queries();
  }

  /// S = Q K^T of one tile, issued only.
  template <int kKeys>
  __device__ __forceinline__ void issue_scores(Scores<kKeys>& scores, std::uint32_t item) {
    const std::uint8_t* rows = shared_.q[stage_of<kC.q_stages>(item)];
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
  __device__ __forceinline__ void issue_values() {
    const int stage = stage_of<kC.kv_stages>(num_values_);
    ptx::mbarrier_wait(shared_.v_ring.full[stage], parity_of<kC.kv_stages>(num_values_));
    const tile::MnMajor<kC.keys> v(shared_.v[stage]);
    ptx::pin(packed_);
    ptx::pin(out_);
    ptx::wgmma_fence();
    tile::issue_accumulate<kC.type, kC.dim, kC.keys>(out_, packed_, v);
  }

  __device__ __forceinline__ void release_keys() {
    release(shared_.k_ring.empty[stage_of<kC.kv_stages>(num_keys_)]);
    ++num_keys_;
  }
  __device__ __forceinline__ void release_values() {
    release(shared_.v_ring.empty[stage_of<kC.kv_stages>(num_values_)]);
    ++num_values_;
  }

  /// After the wait for the products that wrote O. The pin keeps P's registers until here; whoever
  /// packs the next P pins what it is made of.
  __device__ __forceinline__ void finish_values() {
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
    is_moved_ = item_.state.template raise_base<kKeys>(scores, params_.score);
    item_.state.template exponentiate<kKeys>(scores, params_.score);
  }

  template <int kKeys>
  __device__ __forceinline__ void pack(Scores<kKeys>& scores) {
    ptx::pin(scores);
    tile::pack_fragments<kC.type, kKeys>(scores, packed_);
    // A short tile's P is multiplied like any other: the product's form must not depend on data.
#pragma unroll
    for (int i = kKeys / 4; i < kC.keys / 4; ++i) packed_[i] = 0;
  }

  __device__ __forceinline__ void rescale_out() {
    if (is_moved_) item_.state.rescale_rows(out_);
  }

  __device__ __forceinline__ int tile_key(int tile_idx) const {
    return message().k_end - (tile_idx + 1) * kC.keys;
  }

  /// S of an item's first tile; kHasItem: together with the last O += P V of the item before it,
  /// which is then complete but not yet written.
  template <bool kHasItem>
  __device__ __forceinline__ void first_tile() {
    const bool is_masked = is_tile_masked(0);
    Scores<kC.keys> scores;
    wait_keys();
    wait_turn();
    issue_scores<kC.keys>(scores, num_items_ + (kHasItem ? 1 : 0));
    if constexpr (kHasItem) issue_values();
    pass_turn();
    ptx::wgmma_wait<kHasItem ? 1 : 0>();
    ptx::pin(scores);
    release_keys();
    start_item();
    absorb<kC.keys>(scores, tile_key(0), is_masked);
    if constexpr (kHasItem) {
      ptx::wgmma_wait<0>();
      finish_values();
    }
    pack<kC.keys>(scores);
  }

  /// The second tile of an item: its S is multiplied while the item before it is written, then O
  /// starts anew.
  __device__ __forceinline__ void second_tile(const Item& earlier) {
    const bool is_masked = is_tile_masked(1);
    Scores<kC.keys> scores;
    wait_keys();
    wait_turn();
    issue_scores<kC.keys>(scores, num_items_ + 1);
    pass_turn();
    finish_item(earlier);
    clear_out();
    issue_values();
    finish_tile<kC.keys>(scores, tile_key(1), is_masked);
  }

  __device__ __forceinline__ bool is_tile_masked(int tile_idx) const {
    return tile_idx < ptx::uniform(message().full_begin) ||
           tile_idx >= ptx::uniform(message().full_end);
  }

  /// S of one tile together with O += P V of the tile before it, which is full-width.
  template <int kKeys>
  __device__ __forceinline__ void next_tile(int key, bool is_masked) {
    Scores<kKeys> scores;
    wait_keys();
    wait_turn();
    issue_scores<kKeys>(scores, num_items_);
    issue_values();
    pass_turn();
    finish_tile<kKeys>(scores, key, is_masked);
  }

  /// From S and O += P V issued to the next P.
  template <int kKeys>
  __device__ __forceinline__ void finish_tile(Scores<kKeys>& scores, int key, bool is_masked) {
    ptx::wgmma_wait<1>();
    ptx::pin(scores);
    release_keys();
    absorb<kKeys>(scores, key, is_masked);
    ptx::wgmma_wait<0>();
    finish_values();
    pack<kKeys>(scores);
    rescale_out();
    release_earlier_queries();
  }

  /// Brings the present item to its end where no next one's tile does it on the way.
  __device__ __forceinline__ void settle() {
    if (!has_item_) return;
    issue_values();
    ptx::wgmma_wait<0>();
    finish_values();
    finish_item(item_);
    has_item_ = false;
  }

  /// The previous item's out has left its Q buffer by now: hand the buffer back.
  __device__ __forceinline__ void release_earlier_queries() {
    if (!has_earlier_) return;
    ptx::store_wait_read<0>();
    release(shared_.q_ring.empty[stage_of<kC.q_stages>(num_items_ - 1)]);
    has_earlier_ = false;
  }

  __device__ __forceinline__ void finish_item(const Item& item) {
    release_earlier_queries();
    const Epilogue<kC> epilogue(params_, place_, warpgroup_);
    ptx::named_barrier_sync(kEpilogue + warpgroup_, 128);
    epilogue.write(out_, item.state, item.token_begin, item.head_begin,
                   shared_.q[stage_of<kC.q_stages>(num_items_)]);
    ++num_items_;
    has_earlier_ = true;
  }

  SharedStorage<kC>& shared_;
  const ForwardParams& params_;
  const int warpgroup_;
  const tile::FragmentPlace place_;
  std::uint32_t num_messages_ = 0;  ///< done with so far; these counts place each ring
  std::uint32_t num_items_ = 0;     ///< written so far
  bool has_item_ = false;           ///< an item is under way: its last P is still to be multiplied
  std::uint32_t num_keys_ = 0;
  std::uint32_t num_values_ = 0;
  bool has_earlier_ = false;  ///< the previous item still holds its Q buffer
  Item item_;                 ///< the item whose scores came last
  bool is_moved_ = false;     ///< the tile's scores moved the base of the exponentials
  float out_[kC.dim / 2];
  std::uint32_t packed_[kC.keys / 4];
};

}  // namespace magi::sm90
