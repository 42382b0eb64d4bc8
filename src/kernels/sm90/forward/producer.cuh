// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/copy.cuh"
#include "kernels/sm90/forward/params.hpp"
#include "kernels/sm90/forward/shared.cuh"
#include "kernels/tile/descriptor.cuh"
#include "kernels/worklist/tile_run.hpp"

namespace magi::sm90 {

/// An item: a q tile's records, and the first of its heads.
struct Item {
  std::int32_t tile;
  std::int32_t record_begin;
  std::int32_t record_end;
  std::int32_t head_begin;
};

__device__ __forceinline__ Item load_item(const ForwardParams& params, std::int32_t index) {
  // num_items fits 31 bits, so unsigned 32-bit division is exact.
  const auto section_items = static_cast<unsigned>(params.groups_per_section * params.num_tiles);
  const unsigned section = static_cast<unsigned>(index) / section_items;
  const unsigned first_group = section * static_cast<unsigned>(params.groups_per_section);
  const unsigned groups = min(static_cast<unsigned>(params.groups_per_section),
                              static_cast<unsigned>(params.head_groups) - first_group);
  const unsigned inside = static_cast<unsigned>(index) - section * section_items;
  const auto* source = reinterpret_cast<const int4*>(params.tiles + inside / groups);
  const int4 work = __ldg(source);
  return {work.x, work.y, work.z,
          static_cast<std::int32_t>(first_group + inside % groups) * params.packed_heads};
}

/// The one thread that takes items and records, tells the consumers, and loads Q, K and V. It runs
/// ahead of them by the depth of the rings; the next item's ticket and tile are fetched while the
/// present item loads.
template <ForwardConfig kC>
class Producer {
 public:
  __device__ __forceinline__ Producer(SharedStorage<kC>& shared, const ForwardParams& params)
      : shared_(shared), params_(params) {}

  __device__ __forceinline__ void run() {
    Item item = load_item(params_, static_cast<std::int32_t>(blockIdx.x));
    std::int32_t next = take_ticket();
    while (true) {
      const bool has_next = next < params_.num_items;
      const Item next_item = load_item(params_, has_next ? next : 0);
      if (has_next) next = take_ticket();
      run_item(item);
      if (!has_next) break;
      item = next_item;
    }
    flush_values();
    send({.flags = kEndOfItems});
  }

 private:
  __device__ __forceinline__ BandSlice load_record(std::int32_t index) const {
    const auto* source = reinterpret_cast<const int4*>(params_.records + index);
    const int4 first = __ldg(source);
    const int4 second = __ldg(source + 1);
    return {first.x, first.y, first.z, first.w, second.x, second.y};
  }

  /// The counter wraps to 0 by itself: num_items tickets are drawn in a launch, of which gridDim.x
  /// find no item.
  __device__ __forceinline__ std::int32_t take_ticket() const {
    const auto limit = static_cast<unsigned>(params_.num_items - 1);
    return static_cast<std::int32_t>(gridDim.x + atomicInc(params_.ticket, limit));
  }

  __device__ __forceinline__ void run_item(const Item& item) {
    const std::int32_t token = item.tile * params_.tile_tokens;
    const bool has_keys = item.record_begin < item.record_end;
    // Without keys no K load flushes, and the consumers may wait for V before they free Q.
    if (!has_keys) {
      flush_values();
      send({.token_begin = token, .head_begin = item.head_begin, .flags = kLastRun});
    }
    load_queries(item.head_begin, token);
    kv_head_ = item.head_begin / params_.heads_per_kv;
    for (std::int32_t i = item.record_begin; i < item.record_end; ++i) {
      // Changes nothing but a whole slice, one of a tile whose records did not fit.
      const Range rows{token, token + params_.tile_tokens};
      const BandSlice band = shrink(cut_q(load_record(i), rows));
      if (band.q0 >= band.q1) continue;
      run_record(band, item, i == item.record_begin, i + 1 == item.record_end);
    }
  }

  __device__ __forceinline__ void run_record(const BandSlice& band, const Item& item, bool is_first,
                                             bool is_last) {
    const std::int32_t token = item.tile * params_.tile_tokens;
    const std::int32_t row_end = min(token + params_.tile_tokens, params_.rows_q);
    const TileRun run = tile_run(band, token, row_end, kC.keys);
    const bool has_wide = run.num_tiles >= 2 || !is_first;
    const bool is_short = is_last && has_wide && ends_short(band, run, kC.keys, kTrimmedKeys);
    const int num_wide = run.num_tiles - (is_short ? 1 : 0);
    send({.token_begin = token,
          .head_begin = item.head_begin,
          .num_tiles = num_wide,
          .flags = (is_last ? kLastRun : 0) | (is_short ? kShortTile : 0),
          .k_end = run.k_end,
          .full_begin = run.full_begin,
          .full_end = run.full_end,
          .q0 = band.q0,
          .q1 = band.q1,
          .k0 = band.k0,
          .k1 = band.k1,
          .d_min = band.d_min,
          .d_max = band.d_max});
    std::int32_t key = run.k_end;
    const std::int32_t last_wide = run.k_end - num_wide * kC.keys;
    while (key > last_wide) {
      key -= kC.keys;
      load_keys(key);
    }
    if (is_short) load_keys(key - kTrimmedKeys);
  }

  __device__ __forceinline__ void send(const RunMessage& message) {
    auto& ring = shared_.message_ring;
    const int stage = stage_of<kMessageStages>(num_messages_);
    ptx::mbarrier_wait(ring.empty[stage], parity_of<kMessageStages>(num_messages_) ^ 1);
    shared_.messages[stage] = message;
    ptx::mbarrier_arrive(ring.full[stage]);
    ++num_messages_;
  }

  __device__ __forceinline__ void load_queries(std::int32_t head, std::int32_t token) {
    const int stage = stage_of<kC.q_stages>(num_items_);
    ptx::Mbarrier& full = shared_.q_ring.full[stage];
    ptx::mbarrier_wait(shared_.q_ring.empty[stage], parity_of<kC.q_stages>(num_items_) ^ 1);
    ptx::mbarrier_arrive_expect(full, kC.q_bytes());
#pragma unroll
    for (int panel = 0; panel < kC.dim / tile::kPanelElements; ++panel) {
      ptx::load_box(shared_.q[stage] + panel * kC.rows() * tile::kPanelRowBytes, params_.q,
                    {panel * tile::kPanelElements, head, token}, full, ptx::cache_evict_first());
    }
    ++num_items_;
  }

  /// K of a tile, then V of the tile before it: the order in which they are consumed.
  __device__ __forceinline__ void load_keys(std::int32_t key) {
    load_rows(shared_.k_ring, num_tiles_, shared_.k, params_.k, {0, kv_head_, key});
    flush_values();
    ++num_tiles_;
    value_key_ = key;
    value_head_ = kv_head_;
    has_value_ = true;
  }

  __device__ __forceinline__ void flush_values() {
    if (!has_value_) return;
    load_rows(shared_.v_ring, num_tiles_ - 1, shared_.v, params_.v, {0, value_head_, value_key_});
    has_value_ = false;
  }

  __device__ __forceinline__ void load_rows(Ring<kC.kv_stages>& ring, std::uint32_t count,
                                            std::uint8_t (&tiles)[kC.kv_stages][kC.kv_bytes()],
                                            const CUtensorMap& map, ptx::BoxOrigin box) {
    const int stage = stage_of<kC.kv_stages>(count);
    ptx::mbarrier_wait(ring.empty[stage], parity_of<kC.kv_stages>(count) ^ 1);
    ptx::mbarrier_arrive_expect(ring.full[stage], kC.kv_bytes());
#pragma unroll
    for (int panel = 0; panel < kC.dim / tile::kPanelElements; ++panel) {
      box.dim = panel * tile::kPanelElements;
      ptx::load_box(tiles[stage] + panel * kC.keys * tile::kPanelRowBytes, map, box,
                    ring.full[stage], ptx::cache_evict_last());
    }
  }

  SharedStorage<kC>& shared_;
  const ForwardParams& params_;
  std::uint32_t num_messages_ = 0;  ///< sent so far; these counts place each ring
  std::uint32_t num_items_ = 0;
  std::uint32_t num_tiles_ = 0;
  std::int32_t kv_head_ = 0;
  std::int32_t value_key_ = 0;  ///< tile whose V is still to be loaded
  std::int32_t value_head_ = 0;
  bool has_value_ = false;
};

}  // namespace magi::sm90
