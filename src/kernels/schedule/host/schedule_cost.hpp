// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/schedule/host/backward_list.hpp"
#include "kernels/schedule/host/schedule_policy.hpp"
#include "kernels/schedule/host/slice_components.hpp"

// The modelled cost of a schedule of a backward list, in steps. No function changes its input.
namespace magi {

/// The keys cut into k tiles, their records, and the connected component of each record.
struct Tiling {
  std::vector<KeyTile> tiles;
  std::vector<KeyRecord> records;
  std::vector<std::int32_t> component_of;
  /// [k tiles] each: the component of the first slice with a part in the tile, -1: none. Records do
  /// not show which documents lie apart or which nodes belong to one tree.
  SliceComponents slice_components;
};

/// The way the items of a list walk and add.
struct Walk {
  bool is_group_first = false;  ///< see BackwardList
  bool is_ordered = true;       ///< see BackwardList
  /// The main kernel converts the sums that a k tile completes if the tile has this many steps for
  /// each; see order_dq. Absent: it converts none.
  std::optional<std::int64_t> conversion_distance;
};

/// The k tiles of a list for a number of packed heads, as schedules see them.
struct TileCosts {
  BackwardProblem problem;
  BackwardTileShape shape;
  SchedulePolicy policy;
  std::int32_t packed_heads = 1;
  std::int32_t num_q_tiles = 0;
  std::int32_t groups = 1;                 ///< head groups of a kv head
  std::int64_t cached_steps = 1;           ///< steps whose q, dout and dQ fill the cache
  std::vector<std::int64_t> steps;         ///< [k tiles], of one head group
  std::vector<std::int32_t> component_of;  ///< [k tiles], one of Tiling::slice_components
  std::vector<std::int64_t> longest_of;    ///< [k tiles], longest() of its component
  std::vector<std::int32_t> by_cost;       ///< k tiles, longest first, ties by index
  std::vector<char> is_in_flight;          ///< [k tiles]: items wait for keys; empty: none do
  std::int32_t num_components = 0;
  std::int32_t num_global = 0;  ///< the first of by_cost, see SchedulePolicy::global_tiles
  Walk walk;
  bool is_uneven = false;  ///< see SchedulePolicy::uneven_cost
  bool is_nested = false;  ///< see SchedulePolicy::nested_rows
  bool is_short = false;   ///< see SchedulePolicy::short_list
  bool is_long = false;    ///< see SchedulePolicy::long_list

  std::int64_t steps_of(std::int32_t tile) const { return steps[static_cast<std::size_t>(tile)]; }
  bool awaits_keys(std::int32_t tile) const {
    return !is_in_flight.empty() && is_in_flight[static_cast<std::size_t>(tile)] != 0;
  }
  /// Steps of the longest k tile that is not global.
  std::int64_t longest() const {
    const auto first = static_cast<std::size_t>(num_global);
    return first < by_cost.size() ? steps_of(by_cost[first]) : 0;
  }
  bool is_global(std::int32_t tile) const { return num_global > 0 && steps_of(tile) > longest(); }
};

/// Counts the steps whose q, dout and dQ fill the cache, for q tiles of `rows` rows.
std::int64_t cached_steps(const BackwardProblem& problem, std::int32_t rows);

/// Counts the steps of each k tile, for one head group.
std::vector<std::int64_t> count_steps(std::span<const KeyTile> tiles,
                                      std::span<const KeyRecord> records, std::int32_t keys,
                                      std::int32_t tile_tokens);

/// Describes the k tiles of a tiling for a number of packed heads, and decides how items walk their
/// q tiles and add to dQ.
TileCosts cost_tiles(const BackwardProblem& problem, const BackwardTileShape& shape,
                     const Tiling& tiling, std::int32_t packed_heads, const BackwardChoice& choice,
                     const SchedulePolicy& policy = {});

/// An order of the k tiles and how their items are split and handed out.
struct Schedule {
  std::vector<std::int32_t> order;  ///< k tiles
  std::vector<TileSpan> spans;      ///< of places in `order`
  std::int32_t tail_begin = 0;      ///< first place of the tail
  bool has_wide_sections = false;   ///< more kv heads side by side than needed

  std::int64_t num_items() const { return spans.empty() ? 0 : spans.back().item_end; }
};

/// Returns the cost in steps of one of the `num_splits` items that a k tile of `tile_steps` steps
/// has for each kv head.
std::int64_t item_cost(const TileCosts& tiles, std::int64_t tile_steps, std::int32_t num_splits);

/// Returns the time when the last CTA ends if items are handed out in order, in steps.
std::int64_t finish_time(const TileCosts& tiles, const Schedule& schedule);

/// Returns the time when all CTAs would end if none were idle at the end, in steps.
std::int64_t mean_time(const TileCosts& tiles, const Schedule& schedule);

}  // namespace magi
