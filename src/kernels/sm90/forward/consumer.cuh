// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/copy.cuh"
#include "kernels/sm90/forward/epilogue.cuh"
#include "kernels/sm90/forward/params.hpp"
#include "kernels/sm90/forward/run_mask.cuh"
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
    if (warpgroup_ == kC.consumers - 1) signal_pingpong();
    wait_message();
    while (true) {
      if (ptx::uniform(message().num_tiles) > 0) {
        walk_item();
      } else {
        drain();
        if ((ptx::uniform(message().flags) & kEndOfItems) != 0) break;
        finish_empty_item();
      }
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
    return shared_.messages[message_.stage()];
  }
  __device__ __forceinline__ void wait_message() { shared_.message_ring.wait_full(message_); }
  __device__ __forceinline__ void next_message() {
    release(shared_.message_ring.empty.at(message_));
    message_.advance();
    wait_message();
  }

  /// This warp's arrival, after all its lanes are done with what the barrier guards. NOTE: a branch
  /// of one lane makes this kernel 1 to 2 % faster than the predicated arrival of arrive_warp.
  __device__ __forceinline__ void release(ptx::Mbarrier& barrier) const {
    __syncwarp();
    if (ptx::kArrivalsPerWarp == 32 || ptx::thread_index() % 32 == 0) ptx::mbarrier_arrive(barrier);
  }

  /// Warpgroups alternate (ping-pong) in issuing the products S = Q K^T of one tile and O += P V of
  /// the tile before it, so that one multiplies while the others exponentiate.
  __device__ __forceinline__ void wait_pingpong() const {
    if constexpr (kC.has_pingpong) ptx::named_barrier_sync(kPingpong + warpgroup_, 256);
  }
  __device__ __forceinline__ void signal_pingpong() const {
    if constexpr (!kC.has_pingpong) return;
    const int next = warpgroup_ + 1 == kC.consumers ? 0 : warpgroup_ + 1;
    ptx::named_barrier_arrive(kPingpong + next, 256);
  }

  __device__ __forceinline__ Ring<kC.q_stages>& q_ring() {
    return shared_.q_rings[kC.q_parts() == 1 ? 0 : warpgroup_];
  }
  __device__ __forceinline__ void wait_queries() { q_ring().wait_full(queries_); }

  __device__ __forceinline__ void clear_out() {
#pragma unroll
    for (int i = 0; i < kC.dim_v / 2; ++i) out_[i] = 0.0f;
  }

  /// Walks all tiles of an item, run after run, high keys to low. The last P is left to be
  /// multiplied with the next item's first scores.
  __device__ __forceinline__ void walk_item() {
    wait_queries();
    state_ = {};
    first_step();
    int tile_idx = 1;
    while (true) {
      const int num_tiles = ptx::uniform(message().num_tiles);
      const int full_begin = ptx::uniform(message().full_begin);
      const int full_end = ptx::uniform(message().full_end);
      for (; tile_idx < num_tiles; ++tile_idx) {
        const bool is_masked = tile_idx < full_begin || tile_idx >= full_end;
        step<kC.keys>(tile_key(tile_idx), is_masked);
      }
      if ((ptx::uniform(message().flags) & kLastRun) != 0) break;
      next_message();
      tile_idx = 0;
    }
    if constexpr (kC.trimmed_keys > 0) {
      if ((ptx::uniform(message().flags) & kShortTile) != 0) {
        step<kC.trimmed_keys>(tile_key(message().num_tiles - 1) - kC.trimmed_keys, true);
      }
    }
    finish_queries();
    // With two stages the next Q is waiting for this one.
    if constexpr (kC.q_stages == 2) release_earlier_queries(earlier_stage(2));
  }

  /// Ends what needs Q of the item under way: its softmax.
  __device__ __forceinline__ void finish_queries() {
    if constexpr (!kC.stages_out()) release(q_ring().empty.at(queries_));
    epilogue(place_stage<kC>(queries_)).finish_rows(state_);
    queries_.advance();
  }

  /// Issues S = Q K^T of one tile.
  template <int kKeys>
  __device__ __forceinline__ void issue_scores(Scores<kKeys>& scores) {
    const std::uint8_t* rows = shared_.q[queries_.stage()];
    const tile::KMajor<kC.rows()> q(rows + warpgroup_ * 64 * tile::kPanelRowBytes);
    const tile::KMajor<kC.keys> k(shared_.kv + kC.k_offset(tiles_.stage()));
    ptx::wgmma_fence();
    tile::issue_abt<kC.type, kKeys, kC.dim_qk>(scores, q, k);
  }

  /// Waits for a K or V tile.
  __device__ __forceinline__ void wait_tile(RingPlace<kC.kv_stages> place) {
    shared_.kv_ring.wait_full(place);
  }

  /// Issues O += P V of the tile whose P is packed.
  __device__ __forceinline__ void issue_values(RingPlace<kC.kv_stages> place) {
    const tile::MnMajor<kC.keys> v(shared_.kv + kC.v_offset(place.stage()));
    ptx::pin(packed_);
    ptx::pin(out_);
    ptx::wgmma_fence();
    tile::issue_accumulate<kC.type, kC.dim_v, kC.keys>(out_, packed_, v);
  }

  __device__ __forceinline__ void release_tile() {
    release(shared_.kv_ring.empty.at(tiles_));
    tiles_.advance();
  }

  /// Follows the wait for the products that wrote O. The pin keeps P's registers until here;
  /// whoever packs the next P pins what it is made of.
  __device__ __forceinline__ void finish_values() {
    ptx::pin(packed_);
    ptx::pin(out_);
  }

  /// Scores become P, in float; `key` is the tile's first key.
  template <int kKeys>
  __device__ __forceinline__ void accumulate(Scores<kKeys>& scores, int key, bool is_masked) {
    if (is_masked) {
      mask_by_run<kKeys>(scores, message(), {64 * warpgroup_, key}, params_.packed_shift);
    }
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

  __device__ __forceinline__ int tile_key(int tile_idx) const {
    return message().k_end - (tile_idx + 1) * kC.keys;
  }

  /// Multiplies S of one tile together with O += P V of the tile before it, then turns S into P.
  template <int kKeys>
  __device__ __forceinline__ void step(int key, bool is_masked) {
    Scores<kKeys> scores;
    wait_tile(tiles_);
    wait_pingpong();
    issue_scores<kKeys>(scores);
    wait_tile(tiles_.next());
    issue_values(tiles_.next());
    signal_pingpong();
    finish_scores<kKeys>(scores, key, is_masked);
    release_tile();
    pack<kKeys>(scores);
    if (is_moved_) state_.rescale_rows(out_);
    release_earlier_queries(earlier_stage(1));
  }

  /// The step of an item's first tile, where O += P V belongs to the item before it: O is then
  /// complete and written. Where there is none, whatever is there is multiplied and forgotten: the
  /// products in flight must not depend on data.
  __device__ __forceinline__ void first_step() {
    Scores<kC.keys> scores;
    wait_tile(tiles_);
    wait_pingpong();
    issue_scores<kC.keys>(scores);
    wait_tile(tiles_.next());
    issue_values(tiles_.next());
    signal_pingpong();
    const bool is_masked = message().full_begin > 0 || message().full_end <= 0;
    finish_scores<kC.keys>(scores, tile_key(0), ptx::uniform(is_masked ? 1 : 0) != 0);
    release_tile();
    pack<kC.keys>(scores);
    if (ptx::uniform(has_item_ ? 1 : 0) != 0) write_item();
    clear_out();
    has_item_ = true;
  }

  /// Waits for S, makes P of it in float, then waits for O += P V.
  template <int kKeys>
  __device__ __forceinline__ void finish_scores(Scores<kKeys>& scores, int key, bool is_masked) {
    ptx::wgmma_wait<1>();
    ptx::pin(scores);
    release_tile();
    accumulate<kKeys>(scores, key, is_masked);
    ptx::wgmma_wait<0>();
    finish_values();
  }

  /// Brings the item under way to its end where no next one's tile does it on the way.
  __device__ __forceinline__ void drain() {
    if (!has_item_) return;
    wait_tile(tiles_);  // a stage without K
    release_tile();
    wait_tile(tiles_);
    issue_values(tiles_);
    ptx::wgmma_wait<0>();
    finish_values();
    release_tile();
    write_item();
    has_item_ = false;
  }

  __device__ __forceinline__ void finish_empty_item() {
    wait_queries();
    state_ = {};
    clear_out();
    finish_queries();
    write_item();
  }

  __device__ __forceinline__ Epilogue<kC> epilogue(std::uint32_t stage) const {
    return Epilogue<kC>(shared_, params_, warpgroup_, stage);
  }

  /// Writes out of the item before that of `queries_`.
  __device__ __forceinline__ void write_item() {
    release_earlier_queries(earlier_stage(2));
    if constexpr (kC.stages_out()) ptx::named_barrier_sync(kEpilogue + warpgroup_, 128);
    epilogue(earlier_stage(1)).write(out_);
    has_earlier_ = true;
  }

  /// The Q buffer and place of the item `distance` before that of `queries_`.
  __device__ __forceinline__ std::uint32_t earlier_stage(std::uint32_t distance) const {
    const std::uint32_t stage = place_stage<kC>(queries_);
    return stage >= distance ? stage - distance : stage + kC.place_stages() - distance;
  }

  /// The last written item's out has left its Q buffer by now: hand the buffer back.
  __device__ __forceinline__ void release_earlier_queries(std::uint32_t stage) {
    if constexpr (!kC.stages_out()) return;
    if (!has_earlier_) return;
    ptx::store_wait_read<0>();
    release(q_ring().empty.stages[stage]);
    has_earlier_ = false;
  }

  SharedStorage<kC>& shared_;
  const ForwardParams& params_;
  const int warpgroup_;
  RingPlace<kMessageStages> message_;
  RingPlace<kC.q_stages> queries_;  ///< Q of the item under way, or of the next
  RingPlace<kC.kv_stages> tiles_;
  bool has_earlier_ = false;  ///< the item written last still holds its Q buffer
  bool has_item_ = false;     ///< an item's last P, or a tile's, is still to be multiplied
  RowState<kC> state_;        ///< softmax of the item whose scores came last
  bool is_moved_ = false;     ///< the tile's scores moved the base of the exponentials
  float out_[kC.dim_v / 2];
  std::uint32_t packed_[kC.keys / 4];
};

}  // namespace magi::sm90
