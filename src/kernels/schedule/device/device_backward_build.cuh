// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/schedule/device/device_backward_list.hpp"
#include "kernels/schedule/device/device_build.cuh"
#include "kernels/schedule/device/device_order.cuh"
#include "kernels/schedule/device/seen_rows.cuh"

namespace magi {

/// A bit per row: the marked rows. `prefix` counts those before each word.
struct MarkedRows {
  std::uint32_t* bits = nullptr;
  std::int32_t* prefix = nullptr;

  __device__ __forceinline__ bool has(std::int32_t row) const {
    return (bits[row / kWarpLanes] >> (row % kWarpLanes) & 1) != 0;
  }
  /// Counts the rows of [0, row] that are marked.
  __device__ __forceinline__ std::int32_t up_to(std::int32_t row) const {
    const std::uint32_t word = bits[row / kWarpLanes];
    const std::uint32_t below = kFullWarp >> (kWarpLanes - 1 - row % kWarpLanes);
    return prefix[row / kWarpLanes] + __popc(word & below);
  }
};

/// One way to cut the keys into k tiles.
struct KeyGrid {
  std::int32_t rows_k = 0;
  std::int32_t keys = 1;
  std::int32_t num_tiles = 0;
  MarkedRows tiles;                      ///< their first keys; a plain grid has no bits
  const std::int32_t* begins = nullptr;  ///< [num_tiles + 1], likewise
};

/// Arguments of every kernel of a build: shapes by value, parts of the workspace by address.
struct BackwardBuild {
  SliceArrays source;
  SliceTasks tasks;
  std::int32_t rows_q = 0;
  std::int32_t num_q_tiles = 0;
  std::int32_t token_shift = 0;
  std::int32_t packed_heads = 1;
  std::int32_t max_tiles = 0;
  PlainRule rule;
  std::int64_t record_capacity = 0;
  std::int64_t run_capacity = 0;
  std::int64_t zeroed_chunks = 0;  ///< of 16 bytes, from the header on
  KeyGrid grids[kKeyTilings];      ///< the second without num_tiles
  DeviceBackwardHeader* header = nullptr;
  std::uint32_t* cut_bits = nullptr;  ///< null if there are bins
  std::int32_t* num_cut_tiles = nullptr;
  std::int32_t* row_ends = nullptr;
  std::int32_t* group_ends = nullptr;
  std::int32_t* group_counts = nullptr;
  RowGroups groups;
  TallyPlaces tallies[kKeyTilings] = {};
  std::int32_t* begins = nullptr;
  MarkedRows components;  ///< `prefix` counts those of a group of rows
  MarkedRows covered;     ///< without prefix
  std::uint32_t* seen_queries = nullptr;
  std::uint32_t* seen_keys = nullptr;
  std::int32_t* tile_components = nullptr;
  TileSemaphores* tile_semaphores = nullptr;
  std::int32_t* addition_changes = nullptr;
  std::int32_t* converted_tiles = nullptr;
  BandRecord* slices = nullptr;
  std::int32_t* slice_ids = nullptr;
  KeyTile* works = nullptr;
  std::int32_t* longest = nullptr;
  std::int32_t* record_ends = nullptr;
  std::int32_t* record_begins = nullptr;
  std::int32_t* tile_component = nullptr;
  std::int32_t* places = nullptr;
  std::int32_t* items = nullptr;
  std::uint64_t* sort_keys[2] = {};
  ComponentKey* component_keys = nullptr;
  std::uint64_t* by_component = nullptr;
  std::int32_t* component_steps = nullptr;
  KeyTile* tiles = nullptr;
  KeyRecord* records = nullptr;
  RecordMark* marks = nullptr;
  SemaphoreRun* runs = nullptr;
};

__device__ __forceinline__ KeyGrid grid_of(const BackwardBuild& build, int tiling) {
  KeyGrid grid = build.grids[0];
  if (tiling != 0) {
    grid = build.grids[1];
    grid.num_tiles = *build.num_cut_tiles;
  }
  return grid;
}

__device__ __forceinline__ bool has_bins(const BackwardBuild& build) {
  return build.cut_bits == nullptr;
}

/// Returns the way to cut the keys with the lower cost over all k tiles.
__device__ __forceinline__ int cheaper_tiling(const BackwardBuild& build) {
  const auto cost = [&](int tiling) {
    const auto tiles = static_cast<std::uint64_t>(grid_of(build, tiling).num_tiles);
    return build.header->steps[tiling] * static_cast<std::uint64_t>(build.rule.groups) +
           tiles * static_cast<std::uint64_t>(build.rule.overhead);
  };
  return cost(1) < cost(0) ? 1 : 0;
}

/// Reports the chosen tiling, which has `num_records`; one thread of all calls.
__device__ __forceinline__ void report_tiling(const BackwardBuild& build, int tiling,
                                              std::int64_t num_records) {
  DeviceBackwardHeader& header = *build.header;
  header.tiling = tiling;
  header.packed_heads = build.packed_heads;
  header.outcome.num_records = num_records;
  header.outcome.is_overflowing = num_records > build.record_capacity ? 1 : 0;
  if (header.outcome.is_overflowing != 0) return;
  header.outcome.num_tiles = grid_of(build, tiling).num_tiles;
}

/// The walk of the list; `steps`: of all k tiles.
__device__ __forceinline__ PlainWalk walk_of(const BackwardBuild& build, std::int64_t steps) {
  const DeviceBackwardHeader& header = *build.header;
  PlainSums sums;
  sums.num_tiles = header.outcome.num_tiles;
  sums.steps = steps;
  sums.longest_steps = static_cast<std::int64_t>(__ldcg(&header.longest_steps));
  sums.longest = header.max_cost;
  sums.num_wide = header.num_wide;
  sums.wide_steps = static_cast<std::int64_t>(header.wide_steps);
  sums.longest_narrow = header.longest_narrow;
  return plain_walk(build.rule, sums);
}

/// The order in which the items of a list are handed out: its spans, and those of the frame in
/// which the main kernel finds them.
struct ListOrder {
  std::int32_t tail_begin;  ///< place of the first k tile of the tail
  TileSpan spans[kPlainSpans];
  TileSpan frame[kPlainSpans];

  __device__ void make(const BackwardBuild& build, const PlainWalk& walk, const PlainCounts& counts,
                       std::int64_t front_steps) {
    const PlainRule& rule = build.rule;
    make_plain_spans(rule, counts, plain_section_heads(rule, walk, counts, front_steps), spans);
    std::int32_t begin = 0;
#pragma unroll 1
    for (int i = 0; i < kPlainSpans; ++i) {
      frame[i] = plain_frame_span(rule, build.max_tiles, begin, i);
      begin = frame[i].item_end;
    }
  }

  /// Writes the items of a thread of `num_threads`.
  __device__ void write_items(const BackwardBuild& build, std::int32_t thread,
                              std::int32_t num_threads) const {
    const std::int32_t num_items = spans[kPlainSpans - 1].item_end;
#pragma unroll 1
    for (std::int32_t i = thread; i < num_items; i += num_threads) {
      const BackwardItem item =
          backward_item(spans, build.rule.heads_kv, static_cast<std::uint32_t>(i));
      build.items[i] = place_in_frame(frame[item.span], item);
    }
  }

  /// Reports the items of the main kernels, one of which has none; one thread of all calls.
  __device__ void report(const BackwardBuild& build, const PlainWalk& walk) const {
    DeviceBackwardHeader& header = *build.header;
    const std::int32_t num_items = spans[kPlainSpans - 1].item_end;
    header.is_converting = walk.is_converting && header.num_components == 1 ? 1 : 0;
    header.outcome.is_ordered = walk.is_ordered ? 1 : 0;
    header.unordered.num_tiles = header.outcome.num_tiles;
    header.unordered.has_unseen = header.outcome.has_unseen;
    header.outcome.num_items = walk.is_ordered ? num_items : 0;
    header.unordered.num_items = walk.is_ordered ? 0 : num_items;
  }
};

__device__ __forceinline__ std::int32_t tile_of_key(const KeyGrid& grid, std::int32_t key) {
  return grid.begins == nullptr ? key / grid.keys : grid.tiles.up_to(key) - 1;
}

/// The k tiles that a shrunk slice reaches.
__device__ __forceinline__ Range reached_tiles(const KeyGrid& grid, const BandSlice& band) {
  Range tiles;
  if (band.q0 >= band.q1) return tiles;
  tiles.begin = tile_of_key(grid, band.k0);
  tiles.end = tile_of_key(grid, band.k1 - 1) + 1;
  return tiles;
}

__device__ __forceinline__ Range keys_of_tile(const KeyGrid& grid, std::int32_t tile) {
  Range keys;
  if (grid.begins == nullptr) {
    keys.begin = tile * grid.keys;
    keys.end = min(grid.rows_k - keys.begin, grid.keys) + keys.begin;
  } else {
    keys.begin = grid.begins[tile];
    keys.end = grid.begins[tile + 1];
  }
  return keys;
}

/// The k tile's record of a slice; empty if the slice has none of its keys.
__device__ __forceinline__ BandSlice part_of_tile(const KeyGrid& grid, const BandSlice& band,
                                                  std::int32_t tile) {
  return shrink(cut_k(band, keys_of_tile(grid, tile)));
}

/// q tiles of a part.
__device__ __forceinline__ Range tiles_of_part(const BandSlice& part, std::int32_t token_shift) {
  Range tiles;
  tiles.begin = part.q0 >> token_shift;
  tiles.end = ((part.q1 - 1) >> token_shift) + 1;
  return tiles;
}

/// The sum before a thread of a cluster, and the total of all threads.
template <typename Value>
struct ScannedCluster {
  Value before;
  Value total;
};

template <typename Value>
struct ClusterScanShared {
  ScanStorage<Value, kOrderThreads> scan;
  Value total;  ///< of this CTA, read by the others
};

/// Combines values over a cluster of up to kMost CTAs in the order of CTAs and threads. All threads
/// call; after it all can read what they wrote to device memory before.
template <int kMost, typename Value, typename Combine>
__device__ __forceinline__ ScannedCluster<Value> scan_cluster(ClusterScanShared<Value>& shared,
                                                              Value value, Value identity,
                                                              Combine combine) {
  const auto of_block = scan_block<kOrderThreads>(value, shared.scan, identity, combine);
  ScannedCluster<Value> result{of_block.before, of_block.total};
  const int num_ctas = Cluster<kMost>::count();
  if (num_ctas == 1) return result;
  if (threadIdx.x == 0) shared.total = of_block.total;
  Cluster<kMost>::sync();
  // Each lane reads one CTA's: a loop would take one trip per CTA.
  Value other = identity;
  if (lane_index() < num_ctas) other = *Cluster<kMost>::of_cta(&shared.total, lane_index());
  const Value up_to = scan_warp(other, combine);
  const int rank = Cluster<kMost>::rank();
  const Value before = __shfl_sync(kFullWarp, up_to, max(rank - 1, 0));
  result.total = __shfl_sync(kFullWarp, up_to, num_ctas - 1);
  result.before = rank == 0 ? of_block.before : combine(before, of_block.before);
  Cluster<kMost>::sync();  // no CTA overwrites a total that others still read
  return result;
}

/// A thread's share of [0, count), neighbours side by side in the order of scan_cluster.
template <int kMost>
__device__ __forceinline__ Range own_share(std::int32_t count) {
  const std::int32_t rank = Cluster<kMost>::rank();
  const std::int32_t chunk = (count - 1) / (Cluster<kMost>::count() * kOrderThreads) + 1;
  const std::int64_t begin =
      std::int64_t{rank * kOrderThreads + static_cast<std::int32_t>(threadIdx.x)} * chunk;
  Range share;
  share.begin = static_cast<std::int32_t>(begin < count ? begin : count);
  share.end = min(count - share.begin, chunk) + share.begin;
  return share;
}

}  // namespace magi
