// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/plain_list.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "kernels/schedule/host/dq_order.hpp"
#include "kernels/schedule/host/key_tiling.hpp"

namespace magi {
namespace {

/// Steps of all heads and items before records are joined.
std::int64_t cost_of(const BackwardList& frame, const std::vector<KeyTile>& tiles,
                     std::span<const BandSlice> slices) {
  const std::int32_t shift = std::countr_zero(static_cast<std::uint32_t>(frame.tile_tokens));
  std::int64_t steps = 0;
  for (const BandSlice& slice : slices) {
    for_each_part(tiles, slice, [&](std::size_t, const BandSlice& part) {
      steps += ((part.q1 - 1) >> shift) - (part.q0 >> shift) + 1;
    });
  }
  const std::int32_t groups = frame.head_groups / frame.problem.heads_kv;
  return steps * groups + std::ssize(tiles) * frame.shape.overhead;
}

Tiling choose_tiling(const BackwardList& frame, std::span<const BandSlice> slices) {
  std::vector<std::vector<KeyTile>> tilings =
      key_tilings(frame.problem.rows_k, frame.shape.keys, slices);
  auto best = tilings.begin();
  for (auto other = best + 1; other < tilings.end(); ++other) {
    if (cost_of(frame, *other, slices) < cost_of(frame, *best, slices)) best = other;
  }
  return fill_tiling(std::move(*best), slices, kMostPlainParts);
}

/// The component of each k tile's first record; -1: it has none.
std::vector<std::int32_t> components_of_tiles(std::span<const KeyTile> tiles,
                                              std::span<const std::int32_t> components) {
  std::vector<std::int32_t> firsts;
  firsts.reserve(tiles.size());
  for (const KeyTile& tile : tiles) {
    const bool is_empty = tile.record_begin == tile.record_end;
    firsts.push_back(is_empty ? -1 : components[static_cast<std::size_t>(tile.record_begin)]);
  }
  return firsts;
}

/// The k tiles of a list and the order in which they are handed out.
class PlainTiles {
 public:
  /// `steps` and `components` of each k tile; component -1: it has no records.
  PlainTiles(const PlainRule& rule, std::vector<std::int64_t> steps,
             std::vector<std::int32_t> components)
      : rule_(rule), steps_(std::move(steps)), component_of_(std::move(components)) {
    const auto most = std::ranges::max_element(component_of_);
    longest_.assign(component_of_.empty() ? 1 : place_of(*most) + 1, 0);
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      steps_[i] = std::min<std::int64_t>(steps_[i], kMaxPlainSteps);
      std::int64_t& longest = longest_[place_of(component_of_[i])];
      longest = std::max(longest, steps_[i]);
    }
    order_.resize(steps_.size());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    walk_ = plain_walk(rule_, sum_steps());
  }

  const std::vector<std::size_t>& order() const { return order_; }
  const PlainWalk& walk() const { return walk_; }

  /// Sorts the k tiles and returns their spans.
  std::vector<TileSpan> sort() {
    std::ranges::stable_sort(order_, std::ranges::greater{},
                             [&](std::size_t i) { return steps_[i]; });
    const auto tail = order_.begin() + find_tail();
    std::stable_sort(order_.begin(), tail, [&](std::size_t a, std::size_t b) {
      if (split_in_front(a) != split_in_front(b)) return split_in_front(a) > split_in_front(b);
      if (longest_of(a) != longest_of(b)) return longest_of(a) > longest_of(b);
      return component_of_[a] < component_of_[b];
    });
    PlainCounts counts;
    std::int64_t steps = 0;
    std::for_each(order_.begin(), tail, [&](std::size_t i) {
      steps += steps_[i];
      ++counts.in_front[split_in_front(i)];
    });
    std::for_each(tail, order_.end(), [&](std::size_t i) {
      ++counts.in_tail[plain_split(rule_, walk_, steps_[i], true)];
    });
    std::vector<TileSpan> spans(kPlainSpans);
    make_plain_spans(rule_, counts, plain_section_heads(rule_, walk_, counts, steps), spans.data());
    std::erase_if(spans, [](const TileSpan& span) { return span.num_tiles == 0; });
    return spans;
  }

 private:
  /// Among longest_.
  static std::size_t place_of(std::int32_t component) {
    return static_cast<std::size_t>(std::int64_t{component} + 1);
  }
  std::int64_t longest_of(std::size_t i) const {
    return component_of_[i] < 0 ? 0 : longest_[place_of(component_of_[i])];
  }
  std::int32_t split_in_front(std::size_t i) const {
    return plain_split(rule_, walk_, walk_.is_uneven ? longest_of(i) : steps_[i], false);
  }

  PlainSums sum_steps() const {
    PlainSums sums{.num_tiles = std::ssize(steps_)};
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const std::int64_t steps = steps_[i];
      const bool is_wide = is_plain_wide(rule_, steps);
      sums.steps += steps;
      sums.longest_steps += longest_of(i);
      sums.longest = std::max(sums.longest, steps);
      sums.num_wide += is_wide ? 1 : 0;
      sums.wide_steps += is_wide ? steps : 0;
      if (!is_wide) sums.longest_narrow = std::max(sums.longest_narrow, steps);
    }
    return sums;
  }

  std::ptrdiff_t find_tail() const {
    if (order_.empty()) return 0;
    const std::int64_t wanted = plain_tail_cost(rule_, walk_, steps_[order_.front()]);
    auto place = std::ssize(order_);
    for (std::int64_t cost = 0; place > 0 && cost < wanted; --place) {
      const std::size_t tile = order_[static_cast<std::size_t>(place) - 1];
      cost += plain_cost(rule_, steps_[tile]) * rule_.heads_kv;
    }
    return place;
  }

  const PlainRule rule_;
  std::vector<std::int64_t> steps_;
  std::vector<std::int32_t> component_of_;
  std::vector<std::int64_t> longest_;  ///< by component + 1
  std::vector<std::size_t> order_;
  PlainWalk walk_;
};

/// Fills the numbers of splits that head groups allow; if they are few, the last one repeats.
void set_split_counts(PlainRule& rule) {
  for (int i = 1; i < kPlainSplits; ++i) {
    const std::int32_t rest = rule.groups / rule.split_counts[i - 1];
    std::int32_t factor = rest > 1 ? 2 : 1;
    while (rest % factor != 0) ++factor;
    rule.split_counts[i] = rule.split_counts[i - 1] * factor;
  }
}

}  // namespace

std::int32_t plain_packed_heads(const BackwardProblem& problem, std::int64_t num_slices) {
  constexpr std::int64_t kFewSlices = 1536;  // keys of each
  if (problem.rows_k >= kFewSlices * num_slices) return 1;
  const std::int32_t heads_per_kv = problem.heads_q / problem.heads_kv;
  std::int32_t heads = 1;
  while (heads < 4 && heads_per_kv % (2 * heads) == 0 && heads_per_kv > 2 * heads) heads *= 2;
  return heads;
}

std::int64_t most_plain_tiles(const BackwardProblem& problem, const BackwardTileShape& shape,
                              std::int64_t num_slices) {
  const std::int64_t rows = problem.rows_k;
  return rows == 0 ? 0 : (rows - 1) / shape.keys + 1 + std::min(num_slices, rows);
}

PlainRule plain_rule(const BackwardProblem& problem, const BackwardTileShape& shape,
                     std::int32_t packed_heads, std::int64_t most_tiles) {
  const SchedulePolicy policy;
  const std::int32_t tile_tokens = shape.rows / packed_heads;
  PlainRule rule{
      .num_ctas = problem.num_ctas,
      .heads_kv = problem.heads_kv,
      .groups = problem.heads_q / problem.heads_kv / packed_heads,
      .packed_heads = packed_heads,
      .num_q_tiles = (problem.rows_q + tile_tokens - 1) / tile_tokens,
      .overhead = shape.overhead,
      .may_be_uneven = problem.dim_qk + problem.dim_v > policy.even_head_dims,
      .has_converter = shape.has_converter,
      .even_heads = problem.heads_q > problem.heads_kv
                        ? static_cast<std::int32_t>(problem.num_ctas / policy.sharing_ctas)
                        : 0,
      .item_steps =
          std::max<std::int64_t>(policy.uneven_item.of(cached_steps(problem, shape.rows)), 1)};
  rule.tail_steps = std::min(rule.item_steps, policy.uneven_tail);
  rule.conversion_distance = policy.conversion_distance;
  // Longer lists balance without splits.
  if (most_tiles <= kMostPlainSplitTiles) set_split_counts(rule);
  return rule;
}

std::int32_t most_plain_components(const BackwardProblem& problem, std::int64_t num_slices,
                                   std::int64_t num_tiles) {
  return static_cast<std::int32_t>(std::min<std::int64_t>(problem.rows_q, num_slices * num_tiles));
}

BackwardList plain_list_frame(const BackwardProblem& problem, const BackwardTileShape& shape,
                              std::int32_t packed_heads, std::int64_t most_tiles) {
  BackwardList list;
  list.problem = problem;
  list.shape = shape;
  list.packed_heads = packed_heads;
  list.tile_tokens = shape.rows / packed_heads;
  list.head_groups = problem.heads_q / packed_heads;
  list.is_group_first = is_plain_group_first(packed_heads, true);
  if (most_tiles == 0) return list;
  const PlainRule rule = plain_rule(problem, shape, packed_heads, most_tiles);
  std::int64_t num_items = 0;
  for (int i = 0; i < kPlainSpans; ++i) {
    const std::int32_t num_splits = rule.split_counts[plain_split_of_span(i)];
    const std::int64_t begin = num_items;
    num_items += most_tiles * problem.heads_kv * num_splits;
    if (num_items > kMaxItems)
      throw invalid("number of work items", num_items, "up to 2^31 - 1025");
    list.spans.push_back(plain_frame_span(rule, static_cast<std::int32_t>(most_tiles),
                                          static_cast<std::int32_t>(begin), i));
  }
  return list;
}

bool is_plain_group_first(std::int32_t packed_heads, bool is_ordered) {
  return !is_ordered || packed_heads == 1;
}

BackwardList build_plain_list(const BackwardProblem& problem, std::span<const BandSlice> slices,
                              const BackwardTileShape& shape, const BackwardChoice& choice) {
  const std::int32_t heads = choice.packed_heads > 0
                                 ? choice.packed_heads
                                 : plain_packed_heads(problem, std::ssize(slices));
  const std::int64_t most_tiles = most_plain_tiles(problem, shape, std::ssize(slices));
  BackwardList list = plain_list_frame(problem, shape, heads, most_tiles);
  Tiling tiling = choose_tiling(list, slices);
  const std::vector<std::int32_t> components = find_components(tiling.records);
  PlainRule rule = plain_rule(problem, shape, heads, most_tiles);
  rule.may_be_unordered = !choice.is_deterministic;
  PlainTiles tiles(rule, count_steps(tiling.tiles, tiling.records, shape.keys, list.tile_tokens),
                   components_of_tiles(tiling.tiles, components));
  list.spans = tiles.sort();
  list.is_ordered = tiles.walk().is_ordered;
  list.is_group_first = is_plain_group_first(heads, list.is_ordered);
  list.tiles.reserve(tiling.tiles.size());
  for (const std::size_t tile : tiles.order()) list.tiles.push_back(tiling.tiles[tile]);
  list.records = std::move(tiling.records);
  const bool has_one = std::ranges::all_of(components, [](std::int32_t i) { return i == 0; });
  std::optional<Conversions> conversions;
  if (tiles.walk().is_converting && has_one) {
    conversions = {.distance = rule.conversion_distance, .most_others = kMostPlainOthers};
  }
  order_dq(list, components, conversions);
  return list;
}

}  // namespace magi
