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

/// Steps of all heads and items, as long as nothing is joined.
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
  }

  const std::vector<std::size_t>& order() const { return order_; }

  void sort() {
    std::ranges::stable_sort(order_, std::ranges::greater{},
                             [&](std::size_t i) { return steps_[i]; });
    const auto tail = order_.begin() + find_tail();
    std::stable_sort(order_.begin(), tail, [&](std::size_t a, std::size_t b) {
      if (longest_of(a) != longest_of(b)) return longest_of(a) > longest_of(b);
      return component_of_[a] < component_of_[b];
    });
    PlainSums sums;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      sums.steps += steps_[i];
      sums.longest_steps += longest_of(i);
    }
    std::int64_t steps = 0;
    std::for_each(order_.begin(), tail, [&](std::size_t i) { steps += steps_[i]; });
    section_heads_ = plain_section_heads(rule_, sums, tail - order_.begin(), steps);
  }

  /// The sorted k tiles in front of the tail, and the tail.
  std::vector<TileSpan> spans() const {
    std::vector<TileSpan> spans;
    const auto num_tiles = static_cast<std::int32_t>(order_.size());
    for (const Range places : {Range{0, tail_begin_}, Range{tail_begin_, num_tiles}}) {
      if (places.empty()) continue;
      TileSpan span;
      span.tile_begin = places.begin;
      span.num_tiles = span.block_tiles = places.size();
      span.item_begin = places.begin * rule_.heads_kv;
      span.item_end = places.end * rule_.heads_kv;
      span.groups_per_item = rule_.groups;
      span.section_heads = places.begin < tail_begin_ ? section_heads_ : rule_.heads_kv;
      spans.push_back(span);
    }
    return spans;
  }

 private:
  /// Among longest_.
  static std::size_t place_of(std::int32_t component) {
    return static_cast<std::size_t>(std::int64_t{component} + 1);
  }
  std::int64_t longest_of(std::size_t i) const { return longest_[place_of(component_of_[i])]; }

  std::int32_t find_tail() {
    if (order_.empty()) return 0;
    const std::int64_t wanted = plain_tail_cost(rule_, steps_[order_.front()]);
    auto place = static_cast<std::int32_t>(order_.size());
    for (std::int64_t cost = 0; place > 0 && cost < wanted; --place) {
      const std::size_t tile = order_[static_cast<std::size_t>(place) - 1];
      cost += plain_cost(rule_, steps_[tile]) * rule_.heads_kv;
    }
    return tail_begin_ = place;
  }

  const PlainRule rule_;
  std::vector<std::int64_t> steps_;
  std::vector<std::int32_t> component_of_;
  std::vector<std::int64_t> longest_;  ///< by component + 1
  std::vector<std::size_t> order_;
  std::int32_t tail_begin_ = 0;
  std::int32_t section_heads_ = 1;
};

}  // namespace

PlainRule plain_rule(const BackwardProblem& problem, const BackwardTileShape& shape,
                     std::int32_t packed_heads) {
  const auto sharing = static_cast<std::int32_t>(problem.num_ctas / SchedulePolicy{}.sharing_ctas);
  return {.num_ctas = problem.num_ctas,
          .heads_kv = problem.heads_kv,
          .groups = problem.heads_q / problem.heads_kv / packed_heads,
          .overhead = shape.overhead,
          .may_be_uneven = problem.dim_qk + problem.dim_v > SchedulePolicy{}.even_head_dims,
          .even_heads = problem.heads_q > problem.heads_kv ? sharing : 0};
}

std::int32_t plain_packed_heads(std::int32_t heads_per_kv) {
  std::int32_t heads = 1;
  while (heads < 16 && heads_per_kv % (2 * heads) == 0) heads *= 2;
  return heads;
}

std::int32_t most_plain_components(const BackwardProblem& problem, std::int64_t num_slices,
                                   std::int64_t num_tiles) {
  return static_cast<std::int32_t>(std::min<std::int64_t>(problem.rows_q, num_slices * num_tiles));
}

BackwardList plain_list_frame(const BackwardProblem& problem, const BackwardTileShape& shape,
                              std::int32_t packed_heads, std::int64_t num_tiles) {
  const std::int64_t num_items = num_tiles * problem.heads_kv;
  if (num_items > kMaxItems) throw invalid("number of work items", num_items, "up to 2^31 - 1025");
  BackwardList list;
  list.problem = problem;
  list.shape = shape;
  list.packed_heads = packed_heads;
  list.tile_tokens = shape.rows / packed_heads;
  list.head_groups = problem.heads_q / packed_heads;
  if (num_tiles == 0) return list;
  TileSpan span;
  span.item_end = static_cast<std::int32_t>(num_items);
  span.num_tiles = static_cast<std::int32_t>(num_tiles);
  span.groups_per_item = list.head_groups / problem.heads_kv;
  span.section_heads = problem.heads_kv;
  span.block_tiles = span.num_tiles;
  list.spans = {span};
  return list;
}

BackwardList build_plain_list(const BackwardProblem& problem, std::span<const BandSlice> slices,
                              const BackwardTileShape& shape, const BackwardChoice& choice) {
  const std::int32_t heads = choice.packed_heads > 0
                                 ? choice.packed_heads
                                 : plain_packed_heads(problem.heads_q / problem.heads_kv);
  Tiling tiling = choose_tiling(plain_list_frame(problem, shape, heads, 0), slices);
  BackwardList list = plain_list_frame(problem, shape, heads, std::ssize(tiling.tiles));
  const std::vector<std::int32_t> components = find_components(tiling.records);
  PlainTiles tiles(plain_rule(problem, shape, heads),
                   count_steps(tiling.tiles, tiling.records, shape.keys, list.tile_tokens),
                   components_of_tiles(tiling.tiles, components));
  tiles.sort();
  list.spans = tiles.spans();
  list.tiles.reserve(tiling.tiles.size());
  for (const std::size_t tile : tiles.order()) list.tiles.push_back(tiling.tiles[tile]);
  list.records = std::move(tiling.records);
  order_dq(list, components, std::nullopt);
  return list;
}

}  // namespace magi
