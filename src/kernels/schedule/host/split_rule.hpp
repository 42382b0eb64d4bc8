// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/host_device.hpp"
#include "kernels/schedule/host/forward_list.hpp"
#include "kernels/schedule/host/tile_run.hpp"

// The rule by which q tiles are split, in integers that the host and the device compute
// alike. A tile much longer than the mean work of a multiprocessor would end long after all
// others.
namespace magi {

/// Makes at most `max_splits` splits of all heads together, none below `min_cost`.
struct SplitRule {
  std::int32_t max_splits = 0;  ///< below 3: no tile is split
  std::int32_t min_cost = 8;    ///< in half k tiles
};

inline constexpr std::int32_t kMaxSplits = 4096;  ///< largest max_splits
inline constexpr std::int32_t kLeastSplits = 3;   ///< of a split tile: 2 gain less than they cost

/// The most splits that one of `head_groups` may have.
MAGI_HOST_DEVICE std::int32_t max_slots(const SplitRule& rule, std::int32_t head_groups) {
  const std::int32_t slots = rule.max_splits / head_groups;
  return slots < kLeastSplits ? 0 : slots;
}
MAGI_HOST_DEVICE std::int32_t max_split_tiles(const SplitRule& rule, std::int32_t head_groups) {
  return max_slots(rule, head_groups) / kLeastSplits;
}

/// The rule that shares slots of a head group among its tiles.
struct SplitShares {
  std::int64_t tile_costs = 0;  ///< sum over the tiles
  std::int32_t slots = 0;
  std::int32_t min_cost = 1;

  /// Splits that a tile's cost is worth: at least kLeastSplits if it is split, and never fewer for
  /// a higher cost.
  MAGI_HOST_DEVICE std::int32_t worth(std::int32_t cost) const {
    if (tile_costs == 0) return 0;
    const std::int64_t by_load = std::int64_t{cost} * slots / tile_costs;
    const std::int64_t by_size = cost / min_cost;
    return static_cast<std::int32_t>(by_load < by_size ? by_load : by_size);
  }
  MAGI_HOST_DEVICE bool is_split(std::int32_t cost) const { return worth(cost) >= kLeastSplits; }
  /// Splits of a split tile, 2 or more.
  MAGI_HOST_DEVICE std::int32_t num_splits(std::int32_t cost, std::int64_t num_k_tiles) const {
    const std::int32_t splits = worth(cost);
    return splits < num_k_tiles ? splits : static_cast<std::int32_t>(num_k_tiles);
  }
};

MAGI_HOST_DEVICE SplitShares split_shares(const SplitRule& rule, std::int64_t tile_costs,
                                          std::int32_t head_groups, const TileShape& shape) {
  // A tile of three times the overhead has two k tiles or more.
  const std::int32_t least = shape.overhead > 2 ? shape.overhead : 2;
  SplitShares shares;
  shares.tile_costs = tile_costs;
  shares.slots = max_slots(rule, head_groups);
  shares.min_cost = rule.min_cost > least ? rule.min_cost : least;
  return shares;
}

/// The k tiles of a tile's walk, shared among its splits.
struct SplitGrid {
  std::int64_t num_k_tiles = 0;
  std::int32_t num_splits = 1;

  /// First k tile of a split; for num_splits the end of the walk.
  MAGI_HOST_DEVICE std::int64_t begin(std::int32_t split) const {
    return num_k_tiles * split / num_splits;
  }
  /// The first split that begins at `k_tile` or later.
  MAGI_HOST_DEVICE std::int32_t first_from(std::int64_t k_tile) const {
    return static_cast<std::int32_t>((k_tile * num_splits + num_k_tiles - 1) / num_k_tiles);
  }
};

/// Sets in `splits` the ends that lie in record `index`, whose k tiles of `width` keys follow
/// `before` others of the tile.
MAGI_HOST_DEVICE void cut_record(TileWork* splits, const SplitGrid& grid, std::int32_t index,
                                 std::int64_t before, const TileRun& run, std::int32_t width) {
  if (run.num_tiles == 0) return;
  const std::int64_t end = before + run.num_tiles;
  for (std::int32_t i = grid.first_from(before); i < grid.num_splits && grid.begin(i) < end; ++i) {
    splits[i].record_begin = index;
    splits[i].k_end = run.k_end - static_cast<std::int32_t>(grid.begin(i) - before) * width;
  }
  for (std::int32_t i = grid.first_from(before + 1); i <= grid.num_splits && grid.begin(i) <= end;
       ++i) {
    splits[i - 1].record_end = index + 1;
    splits[i - 1].k_begin = run.k_end - static_cast<std::int32_t>(grid.begin(i) - before) * width;
  }
}

}  // namespace magi
