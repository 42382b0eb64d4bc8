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
      : shared_(shared), params_(params), warpgroup_(warpgroup) {}

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
        state_ = {};
        clear_out();
        finish_item();
      }
      next_message();
    }
    settle();
    ptx::store_wait_read<0>();
  }

 private:
  template <int kKeys>
  using Scores = float[kKeys / 2];

  /// The present run. It stays in shared memory until the run is over: what only masked tiles and
  /// the epilogue need costs no registers.
  __device__ __forceinline__ const RunMessage& message() const {
    return shared_.messages[message_.stage];
  }
  __device__ __forceinline__ void wait_message() {
    ptx::mbarrier_wait(shared_.message_ring.full[message_.stage], message_.parity);
  }
  __device__ __forceinline__ void next_message() {
    release(shared_.message_ring.empty[message_.stage]);
    message_.advance();
    wait_message();
  }

  /// One arrival of this warp, after all its lanes are done with what the barrier guards.
  __device__ __forceinline__ void release(ptx::Mbarrier& barrier) const {
    __syncwarp();
    if (ptx::thread_index() % 32 == 0) ptx::mbarrier_arrive(barrier);
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
    const RingPlace<kC.q_stages> place = has_item_ ? queries_.next() : queries_;
    ptx::mbarrier_wait(shared_.q_ring.full[place.stage], place.parity);
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
      first_tile_beside_earlier();
      if (ptx::uniform(message().num_tiles) >= 2) {
        second_tile();
        tile_idx = 2;
      } else {
        write_item();
        clear_out();
      }
    } else {
      clear_out();
      first_tile();
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

  /// S = Q K^T of one tile with the Q of stage `stage`, issued only.
  template <int kKeys>
  __device__ __forceinline__ void issue_scores(Scores<kKeys>& scores, std::uint32_t stage) {
    const std::uint8_t* rows = shared_.q[stage];
    const tile::KMajor<kC.rows()> q(rows + warpgroup_ * 64 * tile::kPanelRowBytes);
    const tile::KMajor<kC.keys> k(shared_.kv[tiles_.stage]);
    ptx::wgmma_fence();
    tile::issue_abt<kC.type, kKeys, kC.dim>(scores, q, k);
  }

  __device__ __forceinline__ void wait_keys() {
    ptx::mbarrier_wait(shared_.kv_ring.full[tiles_.stage], tiles_.parity);
  }

  /// O += P V of the tile whose P is packed, issued only.
  __device__ __forceinline__ void issue_values(RingPlace<kC.kv_stages> place) {
    ptx::mbarrier_wait(shared_.kv_ring.full[place.stage], place.parity);
    const tile::MnMajor<kC.keys> v(shared_.kv[place.stage]);
    ptx::pin(packed_);
    ptx::pin(out_);
    ptx::wgmma_fence();
    tile::issue_accumulate<kC.type, kC.dim, kC.keys>(out_, packed_, v);
  }

  __device__ __forceinline__ void release_tile() {
    release(shared_.kv_ring.empty[tiles_.stage]);
    tiles_.advance();
  }

  /// After the wait for the products that wrote O. The pin keeps P's registers until here; whoever
  /// packs the next P pins what it is made of.
  __device__ __forceinline__ void finish_values() {
    ptx::pin(packed_);
    ptx::pin(out_);
    release_tile();
  }

  /// Masks the tile of keys [key, key + kKeys) by the present run's band.
  template <int kKeys>
  __device__ __forceinline__ void mask_scores(Scores<kKeys>& scores, int key) {
    const RunMessage& run = message();
    const tile::FragmentPlace place(ptx::thread_index() % 128);
    int low[tile::kRowsPerThread];
    int high[tile::kRowsPerThread];
#pragma unroll
    for (int row = 0; row < tile::kRowsPerThread; ++row) {
      const int row_in_tile = 64 * warpgroup_ + place.row + 8 * row;
      const int token = run.token_begin + (row_in_tile >> params_.packed_shift);
      const bool is_inside = token >= run.q0 && token < run.q1;
      low[row] = (is_inside ? max(run.k0, token + run.d_min) : 0) - place.column - key;
      high[row] = (is_inside ? min(run.k1, token + run.d_max + 1) : 0) - place.column - key;
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
    // A short tile's P is multiplied like any other: the product's form must not depend on data.
#pragma unroll
    for (int i = kKeys / 4; i < kC.keys / 4; ++i) packed_[i] = 0;
  }

  __device__ __forceinline__ void rescale_out() {
    if (is_moved_) state_.rescale_rows(out_);
  }

  __device__ __forceinline__ int tile_key(int tile_idx) const {
    return message().k_end - (tile_idx + 1) * kC.keys;
  }

  /// S of an item's first tile, to P.
  __device__ __forceinline__ void first_tile() {
    Scores<kC.keys> scores;
    wait_keys();
    wait_turn();
    issue_scores<kC.keys>(scores, queries_.stage);
    pass_turn();
    state_ = {};
    ptx::wgmma_wait<0>();
    ptx::pin(scores);
    release_tile();
    absorb<kC.keys>(scores, tile_key(0), is_tile_masked(0));
    pack<kC.keys>(scores);
  }

  /// The same together with the last O += P V of the item before it, whose lse is written under the
  /// products and whose O is then complete.
  __device__ __forceinline__ void first_tile_beside_earlier() {
    Scores<kC.keys> scores;
    wait_keys();
    wait_turn();
    issue_scores<kC.keys>(scores, queries_.next().stage);
    issue_values(tiles_.next());
    pass_turn();
    epilogue().finish_rows(state_);
    state_ = {};
    ptx::wgmma_wait<1>();
    ptx::pin(scores);
    release_tile();
    absorb<kC.keys>(scores, tile_key(0), is_tile_masked(0));
    ptx::wgmma_wait<0>();
    finish_values();
    pack<kC.keys>(scores);
  }

  /// The second tile of an item: its S is multiplied while the item before it is written, then O
  /// starts anew.
  __device__ __forceinline__ void second_tile() {
    Scores<kC.keys> scores;
    wait_keys();
    wait_turn();
    issue_scores<kC.keys>(scores, queries_.next().stage);
    pass_turn();
    write_item();
    clear_out();
    issue_values(tiles_.next());
    finish_tile<kC.keys>(scores, tile_key(1), is_tile_masked(1));
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
    issue_scores<kKeys>(scores, queries_.stage);
    issue_values(tiles_.next());
    pass_turn();
    finish_tile<kKeys>(scores, key, is_masked);
  }

  /// From S and O += P V issued to the next P.
  template <int kKeys>
  __device__ __forceinline__ void finish_tile(Scores<kKeys>& scores, int key, bool is_masked) {
    ptx::wgmma_wait<1>();
    ptx::pin(scores);
    release_tile();
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
    issue_values(tiles_);
    ptx::wgmma_wait<0>();
    finish_values();
    finish_item();
    has_item_ = false;
  }

  /// The previous item's out has left its Q buffer by now: hand the buffer back.
  __device__ __forceinline__ void release_earlier_queries() {
    if (!has_earlier_) return;
    ptx::store_wait_read<0>();
    // With two stages the previous one is the next.
    static_assert(kC.q_stages == 2);
    release(shared_.q_ring.empty[queries_.next().stage]);
    has_earlier_ = false;
  }

  __device__ __forceinline__ Epilogue<kC> epilogue() const {
    return Epilogue<kC>(shared_, params_, warpgroup_, queries_.stage);
  }

  /// The present item's lse and out, once O is complete.
  __device__ __forceinline__ void finish_item() {
    epilogue().finish_rows(state_);
    write_item();
  }

  __device__ __forceinline__ void write_item() {
    release_earlier_queries();
    ptx::named_barrier_sync(kEpilogue + warpgroup_, 128);
    epilogue().write(out_);
    queries_.advance();
    has_earlier_ = true;
  }

  SharedStorage<kC>& shared_;
  const ForwardParams& params_;
  const int warpgroup_;
  RingPlace<kMessageStages> message_;
  RingPlace<kC.q_stages> queries_;  ///< of the item that is written next
  RingPlace<kC.kv_stages> tiles_;
  bool has_item_ = false;     ///< an item is under way: its last P is still to be multiplied
  bool has_earlier_ = false;  ///< the previous item still holds its Q buffer
  RowState<kC> state_;        ///< of the item whose scores came last
  bool is_moved_ = false;     ///< the tile's scores moved the base of the exponentials
  float out_[kC.dim / 2];
  std::uint32_t packed_[kC.keys / 4];
};

}  // namespace magi::sm90
