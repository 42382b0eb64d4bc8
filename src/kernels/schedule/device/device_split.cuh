// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/schedule/device/device_build.cuh"

namespace magi {

inline constexpr int kSplitThreads = 256;
inline constexpr int kMaxSplitTiles = kMaxSplits / kLeastSplits;

struct SplitShared {
  std::int32_t num_splits[kMaxSplitTiles];  ///< of each split tile
  std::int32_t cost[kMaxSplitTiles];        ///< of its splits
  ScanStorage<std::int64_t, kSplitThreads> scan;
};

/// Makes the works of the sorted tiles, of which the longest are split, as split_long_tiles does:
/// splits come after whole tiles of equal cost. Each block finds the split tiles anew and places
/// its share of the whole ones; one block walks the records of a split tile.
class TileSplitter {
 public:
  __device__ TileSplitter(SplitShared& shared, const DeviceBuild& build)
      : shared_(shared), build_(build), grid_(build.grid) {
    const auto tile_costs = static_cast<std::int64_t>(build.header->list_cost);
    shares_ = split_shares(build.split, tile_costs, grid_.head_groups, build.tile);
  }

  __device__ void run() {
    find_splits();
    if (blockIdx.x == 0) report();
    place_whole_tiles();
#pragma unroll 1
    for (auto i = static_cast<std::int32_t>(blockIdx.x); i < num_split_tiles_;
         i += static_cast<std::int32_t>(gridDim.x)) {
      cut(i);
    }
  }

 private:
  __device__ static std::int32_t thread() { return static_cast<std::int32_t>(threadIdx.x); }

  __device__ std::int64_t num_k_tiles(std::int32_t tile) const {
    return static_cast<std::int64_t>(build_.tallies[tile].num_k_tiles);
  }

  /// The split tiles are the first of the sorted ones.
  __device__ void find_splits() {
    const std::int32_t most =
        min(max_split_tiles(build_.split, grid_.head_groups), grid_.num_tiles);
#pragma unroll 1
    for (std::int32_t first = 0; first < most; first += kSplitThreads) {
      const std::int32_t i = first + thread();
      bool is_split = false;
      if (i < most) {
        const TileWork work = build_.tiles[i];
        is_split = shares_.is_split(work.cost);
        if (is_split) {
          const std::int32_t splits = shares_.num_splits(work.cost, num_k_tiles(work.tile));
          shared_.num_splits[i] = splits;
          shared_.cost[i] = work.cost / splits;
        }
      }
      const std::int32_t found = __syncthreads_count(is_split ? 1 : 0);
      num_split_tiles_ += found;
      if (found < kSplitThreads) break;
    }
  }

  /// Splits of the first `end` split tiles that visit() wants.
  template <typename Visit>
  __device__ std::int32_t count_splits(std::int32_t end, Visit visit) const {
    std::int32_t count = 0;
#pragma unroll 1
    for (std::int32_t i = 0; i < end; ++i) count += visit(i) ? shared_.num_splits[i] : 0;
    return count;
  }

  __device__ void report() const {
    const std::int32_t all = count_splits(num_split_tiles_, [](std::int32_t) { return true; });
#pragma unroll 1
    for (std::int32_t i = thread(); i < num_split_tiles_; i += kSplitThreads) {
      SplitTile split;
      split.tile = build_.tiles[i].tile;
      split.first_slot = count_splits(i, [](std::int32_t) { return true; });
      split.num_slots = shared_.num_splits[i];
      build_.split_tiles[i] = split;
    }
    if (thread() != 0) return;
    ListOutcome& outcome = build_.header->outcome;
    outcome.num_works = grid_.num_tiles - num_split_tiles_ + all;
    outcome.num_split_tiles = num_split_tiles_;
    outcome.num_slots = all;
  }

  __device__ void place_whole_tiles() const {
    const auto stride = static_cast<std::int32_t>(gridDim.x) * kSplitThreads;
    const std::int32_t first =
        num_split_tiles_ + static_cast<std::int32_t>(blockIdx.x) * kSplitThreads;
#pragma unroll 1
    for (std::int32_t i = first + thread(); i < grid_.num_tiles; i += stride) {
      const TileWork work = build_.tiles[i];
      const std::int32_t longer = count_splits(
          num_split_tiles_, [&](std::int32_t split) { return shared_.cost[split] > work.cost; });
      build_.works[i - num_split_tiles_ + longer] = work;
    }
  }

  /// Whole tiles of at least `cost`.
  __device__ std::int32_t count_whole(std::int32_t cost) const {
    std::int32_t low = num_split_tiles_;
    std::int32_t high = grid_.num_tiles;
    while (low < high) {
      const std::int32_t middle = low + (high - low) / 2;
      if (build_.tiles[middle].cost >= cost) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low - num_split_tiles_;
  }

  __device__ void cut(std::int32_t index) {
    const TileWork whole = build_.tiles[index];
    const std::int32_t cost = shared_.cost[index];
    SplitGrid splits;
    splits.num_k_tiles = num_k_tiles(whole.tile);
    splits.num_splits = shared_.num_splits[index];
    const std::int32_t before = count_splits(num_split_tiles_, [&](std::int32_t split) {
      return shared_.cost[split] > cost || (shared_.cost[split] == cost && split < index);
    });
    TileWork* works = build_.works + count_whole(cost) + before;
    const std::int32_t first_slot = count_splits(index, [](std::int32_t) { return true; });
#pragma unroll 1
    for (std::int32_t i = thread(); i < splits.num_splits; i += kSplitThreads) {
      TileWork work;
      work.tile = whole.tile;
      work.cost = cost;
      work.slot = first_slot + i;
      works[i] = work;
    }
    __syncthreads();
    walk_records(whole, splits, works);
  }

  __device__ void walk_records(const TileWork& whole, const SplitGrid& splits, TileWork* works) {
    const Range rows = rows_of_tile(grid_, whole.tile);
    std::int64_t before = 0;
#pragma unroll 1
    for (std::int32_t first = whole.record_begin; first < whole.record_end;
         first += kSplitThreads) {
      const std::int32_t record = first + thread();
      TileRun run;
      if (record < whole.record_end) {
        // Changes only a whole slice, of a tile whose records did not fit.
        const BandSlice band = part_of_tile(grid_, build_.records[record].band, whole.tile);
        if (band.q0 < band.q1) run = tile_run(band, rows.begin, rows.end, build_.tile.keys);
      }
      const auto scan = scan_block<kSplitThreads>(std::int64_t{run.num_tiles}, shared_.scan);
      cut_record(works, splits, record, before + scan.before, run, build_.tile.keys);
      before += scan.total;
    }
  }

  SplitShared& shared_;
  const DeviceBuild& build_;
  const TileGrid& grid_;
  SplitShares shares_;
  std::int32_t num_split_tiles_ = 0;
};

}  // namespace magi
