// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/copy.cuh"
#include "kernels/sm90/forward/params.hpp"
#include "kernels/sm90/forward/shared.cuh"
#include "kernels/tile/descriptor.cuh"

namespace magi::sm90 {

/// The one thread that loads what the messages name, in the order in which the consumers use it: an
/// item's Q, and through one ring K of each tile, followed by V of the tile before it. Keys of a
/// tile that its run does not have weigh 0, but what stands there may be NaN: their V is loaded as
/// zeros.
template <ForwardConfig kC>
class Loader {
 public:
  __device__ __forceinline__ Loader(SharedStorage<kC>& shared, const ForwardParams& params)
      : shared_(shared), params_(params) {}

  __device__ __forceinline__ void run() {
    while (true) {
      shared_.message_ring.wait_full(message_);
      const RunMessage& message = shared_.messages[message_.stage()];
      if ((message.flags & kEndOfItems) != 0) break;
      load_run(message);
      ptx::mbarrier_arrive(shared_.message_ring.empty.at(message_));
      message_.advance();
    }
    flush_values();
  }

 private:
  __device__ __forceinline__ void load_run(const RunMessage& message) {
    if ((message.flags & kNewKeys) != 0) ptx::fence_async_global();
    // Without keys no K load flushes, and the consumers may wait for V before they free Q.
    if (message.num_tiles == 0 && (message.flags & kShortTile) == 0) flush_values();
    const bool is_first = (message.flags & kFirstRun) != 0;
    // With one stage Q waits for the item before to end: what can come earlier goes ahead of it.
    const bool is_q_later = !kC.stages_out() && message.num_tiles > 0;
    if (is_first && !is_q_later) load_queries(message);
    const int kv_head = message.head_begin / params_.heads_per_kv;
    // A run has own keys or others. Rows in front of the first one of either are loaded as zeros.
    is_own_ = message.k_end <= params_.own_rows;
    const std::int32_t rows_before = is_own_ ? 0 : params_.own_rows;
    const std::int32_t first_key = message.k0 - rows_before;
    std::int32_t key = message.k_end - rows_before;
    for (std::int32_t i = message.num_tiles; i > 0; --i) {
      key -= kC.keys;
      load_keys(key, {max(first_key - key, 0), kC.keys}, kv_head);
      if (is_first && is_q_later && i == message.num_tiles) load_queries(message);
    }
    if ((message.flags & kShortTile) == 0) return;
    key -= kC.trimmed_keys;
    load_keys(key, {max(first_key - key, 0), kC.trimmed_keys}, kv_head);
  }

  __device__ __forceinline__ void load_queries(const RunMessage& message) {
    const ItemPlace place{message.token_begin, message.head_begin, message.partial};
#pragma unroll
    for (int part = 0; part < kC.q_parts(); ++part) load_query_part(place, part);
    queries_.advance();
  }

  __device__ __forceinline__ void load_query_part(const ItemPlace& place, int part) {
    constexpr int kRows = kC.rows() / kC.q_parts();
    auto& ring = shared_.q_rings[part];
    ptx::Mbarrier& full = ring.full.at(queries_);
    ring.wait_empty(queries_);
    shared_.places[part][place_stage<kC>(queries_)] = place;
    ptx::mbarrier_arrive_expect(full, kC.q_bytes() / kC.q_parts());
    std::uint8_t* rows = shared_.q[queries_.stage()] + part * kRows * tile::kPanelRowBytes;
    const int token = place.token_begin + part * (kRows >> params_.packed_shift);
#pragma unroll
    for (int panel = 0; panel < kC.dim_qk / tile::kPanelElements; ++panel) {
      ptx::load_box(rows + panel * kC.rows() * tile::kPanelRowBytes, params_.q,
                    {panel * tile::kPanelElements, place.head_begin, token}, full,
                    ptx::cache_evict_first());
    }
  }

  /// Fills a pair of stages: K of a tile, and V of the one before or nothing. `rows`: those of the
  /// tile that are the run's.
  __device__ __forceinline__ void load_keys(std::int32_t key, Range rows, int kv_head) {
    load_tile<kC.dim_qk>(is_own_ ? params_.own_k : params_.k, kC.k_offset(tiles_.stage()), key,
                         kv_head);
    load_values();
    value_key_ = key;
    value_rows_ = rows;
    is_value_own_ = is_own_;
    value_head_ = kv_head;
    has_value_ = true;
  }

  /// Fills a pair of stages with V of the last tile alone.
  __device__ __forceinline__ void flush_values() {
    if (!has_value_) return;
    skip_tile();
    load_values();
  }

  __device__ __forceinline__ void load_values() {
    if (!has_value_) return skip_tile();
    has_value_ = false;
    if (value_rows_.begin > 0 || value_rows_.end < kC.keys) return load_part();
    load_tile<kC.dim_v>(is_value_own_ ? params_.own_v : params_.v, kC.v_offset(tiles_.stage()),
                        value_key_, value_head_);
  }

  /// V of a tile of which the run has some keys.
  __device__ __forceinline__ void load_part() {
    constexpr int kHalf = kC.keys / 2;
    static_assert(kHalf % 8 == 0 && kC.trimmed_keys % kHalf == 0);
    const CUtensorMap& map = is_value_own_ ? params_.own_v_window : params_.v_window;
    ptx::Mbarrier& full = shared_.kv_ring.full.at(tiles_);
    std::uint8_t* rows = shared_.kv + kC.v_offset(tiles_.stage());
    shared_.kv_ring.wait_empty(tiles_);
    ptx::mbarrier_arrive_expect(full, kC.v_bytes());
#pragma unroll 1
    for (int half = 0; half < kC.keys; half += kHalf) {
      // As many rows of the half hang over the front of its window.
      int over = min(max(value_rows_.begin - half, 0), kHalf);
      if (half >= value_rows_.end) over = kHalf;
#pragma unroll
      for (int panel = 0; panel < kC.dim_v / tile::kPanelElements; ++panel) {
        ptx::load_window(
            rows + panel * kC.keys * tile::kPanelRowBytes, map,
            {panel * tile::kPanelElements, value_head_, -over, value_key_ + half + over}, full,
            ptx::cache_evict_last());
      }
      rows += kHalf * tile::kPanelRowBytes;
    }
    tiles_.advance();
  }

  /// Hands on a stage as it is.
  __device__ __forceinline__ void skip_tile() {
    shared_.kv_ring.wait_empty(tiles_);
    ptx::mbarrier_arrive(shared_.kv_ring.full.at(tiles_));
    tiles_.advance();
  }

  template <int kDim>
  __device__ __forceinline__ void load_tile(const CUtensorMap& map, int offset, std::int32_t key,
                                            int kv_head) {
    ptx::Mbarrier& full = shared_.kv_ring.full.at(tiles_);
    shared_.kv_ring.wait_empty(tiles_);
    ptx::mbarrier_arrive_expect(full, kC.keys * kDim * 2);
#pragma unroll
    for (int panel = 0; panel < kDim / tile::kPanelElements; ++panel) {
      ptx::load_box(shared_.kv + offset + panel * kC.keys * tile::kPanelRowBytes, map,
                    {panel * tile::kPanelElements, kv_head, key}, full, ptx::cache_evict_last());
    }
    tiles_.advance();
  }

  SharedStorage<kC>& shared_;
  const ForwardParams& params_;
  RingPlace<kMessageStages> message_;
  RingPlace<kC.q_stages> queries_;
  RingPlace<kC.kv_stages> tiles_;
  bool is_own_ = false;  ///< the keys of the run under way
  bool is_value_own_ = false;
  std::int32_t value_key_ = 0;  ///< first key of the tile whose V is still to be loaded
  Range value_rows_;            ///< of them the run's
  std::int32_t value_head_ = 0;
  bool has_value_ = false;
};

}  // namespace magi::sm90
