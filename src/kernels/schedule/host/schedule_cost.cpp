// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/schedule_cost.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>

#include "kernels/schedule/host/query_run.hpp"

namespace magi {
namespace {

/// Counts the global k tiles.
std::int32_t count_global(const TileCosts& tiles) {
  const auto all = std::ssize(tiles.by_cost);
  std::int32_t count = 0;
  std::int64_t shortest = 0;
  for (const std::int32_t tile : tiles.by_cost) {
    const std::int64_t steps = tiles.steps_of(tile);
    if (tiles.policy.narrow_tile.is_undercut(steps, tiles.num_q_tiles)) {
      const bool are_few = !tiles.policy.global_tiles.is_exceeded(count, all);
      const bool is_much_shorter = !tiles.policy.global_length.is_exceeded(steps, shortest);
      return are_few && is_much_shorter ? count : 0;
    }
    shortest = steps;
    ++count;
  }
  return 0;
}

/// Fills the values that k tiles have by their components.
void compare_components(TileCosts& tiles) {
  std::map<std::int32_t, std::int64_t> longest;
  std::int64_t global_steps = 0;
  for (std::size_t tile = 0; tile < tiles.steps.size(); ++tile) {
    if (tiles.component_of[tile] < 0) continue;
    if (tiles.is_global(static_cast<std::int32_t>(tile))) {
      global_steps += tiles.steps[tile];
      continue;
    }
    std::int64_t& steps = longest[tiles.component_of[tile]];
    steps = std::max(steps, tiles.steps[tile]);
  }
  for (const std::int32_t component : tiles.component_of) {
    tiles.longest_of.push_back(component < 0 ? 0 : longest[component]);
  }
  tiles.num_components = static_cast<std::int32_t>(longest.size());
  const auto sum = [](const std::vector<std::int64_t>& steps) {
    return std::accumulate(steps.begin(), steps.end(), std::int64_t{0});
  };
  const bool is_apart = tiles.num_components > 1 && !tiles.walk.is_ordered;
  const Ratio& bound = is_apart ? tiles.policy.uneven_apart_cost : tiles.policy.uneven_cost;
  tiles.is_uneven = tiles.problem.dim_qk + tiles.problem.dim_v > tiles.policy.even_head_dims &&
                    bound.is_exceeded(sum(tiles.longest_of), sum(tiles.steps) - global_steps);
}

Walk choose_walk(const TileCosts& tiles, const BackwardChoice& choice) {
  const SchedulePolicy& policy = tiles.policy;
  const std::int64_t longest = tiles.longest();
  std::int64_t total = 0;
  double squares = 0.0;  // the mean is that of a step's k tile
  for (std::int32_t tile = 0; tile < std::ssize(tiles.steps); ++tile) {
    if (tiles.is_global(tile)) continue;
    total += tiles.steps_of(tile);
    squares += std::pow(tiles.steps_of(tile), 2);
  }
  const bool is_narrow = policy.narrow_tile.is_undercut(longest, tiles.num_q_tiles);
  const double alike = static_cast<double>(policy.alike_tiles.numerator) /
                       static_cast<double>(policy.alike_tiles.denominator);
  const bool is_alike =
      static_cast<double>(longest) * static_cast<double>(total) <= alike * squares;
  // An item that waits for keys would hold up all items that add to its sums after it.
  const bool may_wait =
      total < policy.few_additions * tiles.num_q_tiles && tiles.is_in_flight.empty();
  const bool has_few = is_narrow && may_wait;
  const bool is_tiny = may_wait && total * tiles.groups <= policy.tiny_list &&
                       tiles.num_global == 0 && tiles.shape.has_converter;
  Walk walk;
  walk.is_ordered = choice.is_deterministic || has_few || is_tiny;
  if (is_tiny) {
    walk.conversion_distance = 0;
  } else if (has_few && is_alike && tiles.shape.has_converter) {
    walk.conversion_distance = policy.conversion_distance;
  }
  // Windows come back to a q tile soon if they walk one head at a time; under other masks all heads
  // of a q tile side by side keep the CTAs that add to it in step.
  walk.is_group_first = choice.is_group_first.value_or(walk.is_ordered && is_narrow && is_alike);
  return walk;
}

/// Whether k tiles end long before the last row of their component, see
/// SchedulePolicy::nested_rows.
bool is_nested(const TileCosts& costs, const Tiling& tiling) {
  std::vector<Range> rows(tiling.tiles.size());
  std::map<std::int32_t, std::int32_t> last_end;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const KeyTile& tile = tiling.tiles[i];
    for (std::int32_t j = tile.record_begin; j < tile.record_end; ++j) {
      const BandSlice& band = tiling.records[static_cast<std::size_t>(j)].band;
      const bool is_first = j == tile.record_begin;
      rows[i].begin = is_first ? band.q0 : std::min(rows[i].begin, band.q0);
      rows[i].end = std::max(rows[i].end, band.q1);
    }
    std::int32_t& end = last_end[costs.component_of[i]];
    end = std::max(end, rows[i].end);
  }
  std::int64_t spanned = 0;
  std::int64_t behind = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].empty()) continue;
    spanned += rows[i].size();
    behind += last_end[costs.component_of[i]] - rows[i].end;
  }
  return costs.policy.nested_rows.is_exceeded(behind, spanned);
}

/// Chooses components. If additions have an order, CTAs wait for others of the same rows, and tiles
/// with other rows may lie apart; k tiles of a tree are nested whatever rows see them.
void set_components(TileCosts& costs, const Tiling& tiling) {
  costs.component_of = tiling.slice_components.by_rows_and_keys;
  const bool may_nest = costs.walk.is_ordered && is_nested(costs, tiling);
  if (costs.walk.is_ordered && !may_nest) costs.component_of = tiling.slice_components.by_rows;
  compare_components(costs);
  costs.is_nested = may_nest && costs.is_uneven;
}

/// The number of CTAs that are free at each time.
class FreeTimes {
 public:
  explicit FreeTimes(std::int32_t num_ctas) : counts_{num_ctas} {}

  /// Takes a CTA at the earliest time, which it returns.
  std::int64_t take() {
    while (counts_[now_] == 0) ++now_;
    --counts_[now_];
    return static_cast<std::int64_t>(now_);
  }
  /// Frees a CTA at a time no earlier than the last one taken.
  void give(std::int64_t time) {
    const auto index = static_cast<std::size_t>(time);
    if (index >= counts_.size()) counts_.resize(index + 1);
    ++counts_[index];
  }

 private:
  std::vector<std::int32_t> counts_;
  std::size_t now_ = 0;
};

/// Returns the cost of an item at each place of the schedule. A step costs more in the tail of an
/// uneven list and in wide sections, where CTAs are all over the rows of many heads.
std::vector<std::int64_t> item_costs(const TileCosts& tiles, const Schedule& schedule) {
  std::vector<std::int64_t> costs;
  costs.reserve(schedule.order.size());
  for (const TileSpan& span : schedule.spans) {
    for (std::int32_t place = span.tile_begin; place < span.tile_begin + span.num_tiles; ++place) {
      const std::int32_t tile = schedule.order[static_cast<std::size_t>(place)];
      std::int64_t cost = item_cost(tiles, tiles.steps_of(tile), span.num_splits);
      if (tiles.is_uneven && place >= schedule.tail_begin) {
        cost += tiles.policy.tail_step.of(cost);
      } else if (tiles.is_uneven && schedule.has_wide_sections) {
        cost += tiles.policy.wide_section_step.of(cost);
      }
      costs.push_back(cost);
    }
  }
  return costs;
}

std::int64_t mean_time(const TileCosts& tiles, const Schedule& schedule,
                       const std::vector<std::int64_t>& costs) {
  std::int64_t sum = 0;
  for (const TileSpan& span : schedule.spans) {
    const auto begin = costs.begin() + span.tile_begin;
    sum += std::accumulate(begin, begin + span.num_tiles, std::int64_t{0}) * span.num_splits;
  }
  return sum * tiles.problem.heads_kv / tiles.problem.num_ctas;
}

}  // namespace

std::int64_t cached_steps(const BackwardProblem& problem, std::int32_t rows) {
  const std::int64_t row_bytes = 2 * (problem.dim_qk + problem.dim_v) + 4 * problem.dim_qk;
  return std::max<std::int64_t>(problem.cache_bytes / (rows * row_bytes), 1);
}

std::vector<std::int64_t> count_steps(std::span<const KeyTile> tiles,
                                      std::span<const KeyRecord> records, std::int32_t keys,
                                      std::int32_t tile_tokens) {
  const int shift = std::countr_zero(static_cast<std::uint32_t>(tile_tokens));
  std::vector<std::int64_t> steps;
  steps.reserve(tiles.size());
  for (const KeyTile& tile : tiles) {
    std::int64_t sum = 0;
    for (std::int32_t i = tile.record_begin; i < tile.record_end; ++i) {
      const BandSlice& band = records[static_cast<std::size_t>(i)].band;
      const QueryRun run = query_run(band, tile.key_begin, keys, shift);
      sum += run.tile_end - run.tile_begin;
    }
    steps.push_back(sum);
  }
  return steps;
}

TileCosts cost_tiles(const BackwardProblem& problem, const BackwardTileShape& shape,
                     const Tiling& tiling, std::int32_t packed_heads, const BackwardChoice& choice,
                     const SchedulePolicy& policy) {
  const std::int32_t tile_tokens = shape.rows / packed_heads;
  TileCosts costs;
  costs.problem = problem;
  costs.shape = shape;
  costs.policy = policy;
  costs.packed_heads = packed_heads;
  costs.num_q_tiles = problem.rows_q == 0 ? 0 : (problem.rows_q - 1) / tile_tokens + 1;
  costs.groups = problem.heads_q / problem.heads_kv / packed_heads;
  costs.cached_steps = cached_steps(problem, shape.rows);
  costs.steps = count_steps(tiling.tiles, tiling.records, shape.keys, tile_tokens);
  costs.by_cost.resize(tiling.tiles.size());
  std::iota(costs.by_cost.begin(), costs.by_cost.end(), 0);
  std::stable_sort(costs.by_cost.begin(), costs.by_cost.end(), [&](std::int32_t a, std::int32_t b) {
    return costs.steps_of(a) > costs.steps_of(b);
  });
  if (!problem.coming.empty()) {
    for (const KeyTile& tile : tiling.tiles) {
      costs.is_in_flight.push_back(awaited_sources(problem.coming, tile, shape.keys) != 0 ? 1 : 0);
    }
  }
  costs.num_global = count_global(costs);
  costs.walk = choose_walk(costs, choice);
  set_components(costs, tiling);
  const std::int64_t whole_items = std::ssize(tiling.tiles) * problem.heads_kv;
  costs.is_short = whole_items < policy.short_list * problem.num_ctas;
  costs.is_long = whole_items >= policy.long_list * problem.num_ctas;
  return costs;
}

std::int64_t item_cost(const TileCosts& tiles, std::int64_t tile_steps, std::int32_t num_splits) {
  const std::int64_t steps = tile_steps * (tiles.groups / num_splits);
  std::int64_t cost = steps + tiles.shape.overhead + (num_splits > 1 ? tiles.shape.split_cost : 0);
  if (tiles.is_uneven) {
    // The more rows an item walks, the fewer are still in the cache when the next comes to them.
    const Ratio& misses = tiles.policy.cache_misses;
    const std::int64_t walked = std::min(steps, tiles.cached_steps);
    cost += steps * walked / tiles.cached_steps * walked * misses.numerator /
            (misses.denominator * tiles.cached_steps);
  }
  return cost;
}

std::int64_t mean_time(const TileCosts& tiles, const Schedule& schedule) {
  return mean_time(tiles, schedule, item_costs(tiles, schedule));
}

std::int64_t finish_time(const TileCosts& tiles, const Schedule& schedule) {
  const std::vector<std::int64_t> costs = item_costs(tiles, schedule);
  // Times of very long lists are counted in coarser units: a counter for each step would fill the
  // memory.
  const std::int64_t unit = mean_time(tiles, schedule, costs) / (std::int64_t{1} << 18) + 1;
  const std::int32_t heads_kv = tiles.problem.heads_kv;
  FreeTimes ctas(tiles.problem.num_ctas);
  std::vector<std::int64_t> done_of(costs.size() * static_cast<std::size_t>(heads_kv));
  std::int64_t last = 0;
  BackwardItem item;
  for (std::int64_t index = 0; index < schedule.num_items(); index += item.num_beside) {
    item = backward_item(schedule.spans.data(), heads_kv, static_cast<std::uint32_t>(index),
                         item.span);
    const bool is_split = schedule.spans[static_cast<std::size_t>(item.span)].num_splits > 1;
    const std::int64_t cost = costs[static_cast<std::size_t>(item.tile)];
    std::int64_t* before = done_of.data() + std::int64_t{item.tile} * heads_kv + item.kv_head;
    for (std::int32_t i = 0; i < item.num_beside; ++i) {
      std::int64_t done = ctas.take() * unit + cost;
      if (is_split) before[i] = done = std::max(done, before[i] + tiles.shape.split_cost);
      ctas.give(unit == 1 ? done : (done + unit - 1) / unit);
      last = std::max(last, done);
    }
  }
  return last;
}

}  // namespace magi
