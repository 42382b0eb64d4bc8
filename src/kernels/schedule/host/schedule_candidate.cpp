// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/schedule_candidate.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <tuple>
#include <utility>

#include "base/check.hpp"

namespace magi {
namespace {

/// Counts splits: as many as leave `item_steps` to each, but at least the fewest.
std::int32_t count_splits(const ScheduleInput& input, std::int64_t tile_steps,
                          std::int64_t item_steps, std::int64_t least_heads) {
  std::int32_t splits = input.split_counts.front();
  for (const std::int32_t more : input.split_counts) {
    const std::int32_t groups = input.tiles.groups / more;
    const bool has_heads = groups * input.tiles.packed_heads >= least_heads;
    if (tile_steps * groups >= item_steps && has_heads) splits = more;
  }
  return splits;
}

/// The way a candidate splits k tiles, before the tail and in it.
class CandidateSplits {
 public:
  CandidateSplits(const ScheduleInput& input, const Candidate& by)
      : input_(input),
        by_(by),
        least_heads_(by.item_steps < first_candidate(input.tiles).item_steps
                         ? 1
                         : input.tiles.policy.least_item_heads) {}

  /// k tiles of a single component are split alike, so that its rows are walked once for each head.
  std::int32_t before_tail(std::int32_t tile) const {
    const TileCosts& tiles = input_.tiles;
    // Items walk all heads at once: others wait for these to add first.
    if (tiles.is_global(tile)) return input_.split_counts.back();
    const bool is_one = tiles.num_components == 1;
    return of_steps(is_one ? tiles.longest_of[static_cast<std::size_t>(tile)]
                           : tiles.steps_of(tile));
  }
  std::int32_t of_steps(std::int64_t tile_steps) const {
    return count_splits(input_, tile_steps, by_.item_steps, least_heads_);
  }
  std::int32_t in_tail(std::int32_t tile) const {
    const std::int64_t steps =
        by_.is_tail_alike ? input_.tiles.longest() : input_.tiles.steps_of(tile);
    return count_splits(input_, steps, by_.tail_steps, least_heads_);
  }
  /// k tiles that wait for keys are split alike, by their mean length weighted by steps: one span
  /// of them goes through the kv heads once, as the keys arrive.
  std::int32_t of_in_flight() const {
    const TileCosts& tiles = input_.tiles;
    std::int64_t sum = 0;
    std::int64_t weighted = 0;
    for (const std::int32_t tile : tiles.by_cost) {
      if (!tiles.awaits_keys(tile)) continue;
      sum += tiles.steps_of(tile);
      weighted += tiles.steps_of(tile) * tiles.steps_of(tile);
    }
    return of_steps(sum == 0 ? 0 : weighted / sum);
  }

 private:
  const ScheduleInput& input_;
  const Candidate& by_;
  const std::int64_t least_heads_;
};

/// The cost of all items of a k tile.
std::int64_t tile_cost(const TileCosts& tiles, std::int32_t tile, std::int32_t num_splits) {
  return item_cost(tiles, tiles.steps_of(tile), num_splits) * num_splits * tiles.problem.heads_kv;
}

/// Finds the first place of the tail in `order`, k tiles that wait for nothing, longest first
/// (nested ones shortest first). A whole tail has the last k tiles that keep every CTA busy while
/// one still walks the longest of all. If other k tiles wait for keys, at least half of the work
/// stays for the beginning.
std::int32_t find_tail(const TileCosts& tiles, const Candidate& by, const CandidateSplits& splits,
                       std::span<const std::int32_t> order) {
  const std::int64_t longest = tiles.longest();
  std::int64_t wanted = tiles.problem.num_ctas *
                        item_cost(tiles, longest, splits.of_steps(longest)) * by.tail_share /
                        kWholeTail;
  if (order.size() < tiles.by_cost.size()) {
    std::int64_t whole = 0;
    for (const std::int32_t tile : order) whole += tile_cost(tiles, tile, splits.in_tail(tile));
    wanted = std::min(wanted, whole / 2);
  }
  auto place = static_cast<std::int32_t>(order.size());
  for (std::int64_t cost = 0; place > 0 && cost < wanted; --place) {
    const std::int32_t tile = order[static_cast<std::size_t>(place) - 1];
    cost += tile_cost(tiles, tile, splits.in_tail(tile));
  }
  return place;
}

/// Puts the k tiles that wait for keys between the tail and what comes before it.
void set_order(Schedule& schedule, const TileCosts& tiles, const Candidate& by,
               const CandidateSplits& splits) {
  std::vector<std::int32_t>& order = schedule.order;
  order = tiles.by_cost;
  // If the shortest come first, no k tile waits for one that goes on beyond its own rows.
  if (tiles.is_nested) std::reverse(order.begin(), order.end());
  const auto coming = std::stable_partition(
      order.begin(), order.end(), [&](std::int32_t tile) { return !tiles.awaits_keys(tile); });
  const std::int32_t place = find_tail(tiles, by, splits, {order.begin(), coming});
  std::rotate(order.begin() + place, coming, order.end());
  schedule.tail_begin = place + static_cast<std::int32_t>(order.end() - coming);
}

/// Counts the kv heads that lie side by side if every CTA has an item and CTAs that meet at a sum
/// begin `distance` steps apart.
std::int64_t heads_apart(const ScheduleInput& input, const TileSpan& span,
                         std::span<const std::int32_t> order, const Ratio& distance) {
  std::int64_t steps = 1;
  const auto begin = static_cast<std::size_t>(span.tile_begin);
  for (const std::int32_t tile : order.subspan(begin, static_cast<std::size_t>(span.num_tiles))) {
    steps += input.tiles.steps_of(tile) * span.groups_per_item;
  }
  const std::int64_t ctas = std::int64_t{span.num_tiles} * input.tiles.problem.num_ctas;
  return distance.numerator * ctas / (distance.denominator * steps);
}

/// Counts the kv heads of a section of an uneven list: one, so that CTAs walk few rows at a time.
/// In an ordered list, CTAs that meet at a sum begin `chain_distance` steps apart, so the list has
/// as many chains of them side by side as give every CTA an item.
std::int64_t count_chains(const ScheduleInput& input, const TileSpan& span,
                          std::span<const std::int32_t> order) {
  if (!input.tiles.walk.is_ordered) return 1;
  const SchedulePolicy& policy = input.tiles.policy;
  const std::int64_t chains = heads_apart(input, span, order, policy.chain_distance) + 1;
  return span.num_splits == 1 ? chains : std::max(chains, policy.split_chains);
}

/// Counts the kv heads that lie side by side in an ordered even list of several query heads per kv
/// head: in a long list they divide the kv heads, lest a smaller last section chain all CTAs.
std::int64_t count_sharing_heads(const ScheduleInput& input, const TileSpan& span) {
  const TileCosts& tiles = input.tiles;
  const SchedulePolicy& policy = tiles.policy;
  const BackwardProblem& problem = tiles.problem;
  const std::int64_t most = problem.num_ctas / policy.sharing_ctas;
  if (tiles.is_short) return most;
  const Ratio& distance = policy.chain_distance;
  const Ratio& share = policy.chain_share;
  const std::int64_t steps = std::max<std::int64_t>(tiles.longest() * span.groups_per_item, 1);
  const std::int64_t wanted = (problem.num_ctas * distance.numerator * share.denominator - 1) /
                                  (distance.denominator * share.numerator * steps) +
                              1;
  std::int64_t heads = std::max<std::int64_t>(std::min(most, wanted), 1);
  while (heads < problem.heads_kv && problem.heads_kv % heads != 0) ++heads;
  return heads;
}

/// Counts the kv heads of a section of an even list: as many as the cache holds, but enough items
/// for every CTA.
///
/// NOTE: a list has more heads side by side, so that few CTAs meet at a sum, only if the caller
/// asks for determinism. A list that is ordered because of few additions has few CTAs at a sum
/// anyway, and keeps sections that fit the cache.
std::int64_t count_fitting_heads(const ScheduleInput& input, const TileSpan& span,
                                 std::span<const std::int32_t> order) {
  const TileCosts& tiles = input.tiles;
  const BackwardProblem& problem = tiles.problem;
  const std::int64_t column_steps = std::int64_t{tiles.num_q_tiles} * span.groups_per_item + 1;
  const std::int64_t filling = (problem.num_ctas - 1) / std::ssize(tiles.steps) + 1;
  const std::int64_t fitting = std::max(tiles.cached_steps / column_steps, filling);
  const bool is_whole = span.num_splits == 1;
  if (!input.choice.is_deterministic || !is_whole || tiles.walk.is_group_first) return fitting;
  const bool has_groups = problem.heads_q > problem.heads_kv;
  return std::max(fitting, has_groups
                               ? count_sharing_heads(input, span)
                               : heads_apart(input, span, order, tiles.policy.even_chain_distance));
}

std::int32_t count_section_heads(const ScheduleInput& input, const Candidate& by,
                                 const TileSpan& span, std::span<const std::int32_t> order) {
  const bool is_uneven = input.tiles.is_uneven;
  const std::int32_t heads_kv = input.tiles.problem.heads_kv;
  if (input.choice.section_heads > 0) return std::min(input.choice.section_heads, heads_kv);
  std::int64_t heads = is_uneven ? count_chains(input, span, order) * by.section_factor
                                 : count_fitting_heads(input, span, order);
  // Queries that see all keys have chains as long as those of uneven lists.
  if (input.tiles.num_global > 0) heads = std::max(heads, count_chains(input, span, order));
  if (heads >= heads_kv) return heads_kv;
  auto even = static_cast<std::int32_t>(heads);
  while (is_uneven && heads_kv % even != 0) ++even;
  return even;
}

/// The most kv heads, up to `heads`, that lie side by side and all in one arrival chunk.
std::int32_t within_arrival_chunk(const BackwardProblem& problem, std::int32_t heads) {
  const std::int32_t arriving = problem.coming.heads_per_section(problem.heads_kv);
  heads = std::min(heads, arriving);
  while (arriving % heads != 0) --heads;
  return heads;
}

/// Counts the k tiles of a tile subgroup: the whole span if items are whole, else equal
/// blocks.
std::int32_t count_block_tiles(const TileCosts& tiles, const TileSpan& span) {
  if (span.num_splits == 1) return span.num_tiles;
  const auto items = static_cast<std::int32_t>(tiles.policy.block_rounds) * tiles.problem.num_ctas;
  const std::int32_t most = (items - 1) / span.section_heads + 1;
  const std::int32_t blocks = (span.num_tiles - 1) / most + 1;
  return (span.num_tiles - 1) / blocks + 1;
}

/// Counts the kv heads with slots: whole sections, enough that items seldom wait for a slot.
std::int32_t count_slot_heads(const BackwardProblem& problem, const TileSpan& span) {
  const std::int64_t round = std::int64_t{span.section_heads} * span.block_tiles;
  std::int64_t heads = span.section_heads;
  for (std::int64_t apart = round; apart < problem.num_ctas; apart += round * span.num_splits) {
    heads += span.section_heads;
  }
  return static_cast<std::int32_t>(std::min<std::int64_t>(heads, problem.heads_kv));
}

/// `slot_users`: k tiles times kv heads.
void check_size(std::int64_t num_items, std::int64_t slot_users) {
  if (num_items > kMaxItems) throw invalid("number of work items", num_items, "up to 2^31 - 1025");
  // Their counters, two each, are numbered in 32 bits.
  constexpr std::int64_t kMaxSlotUsers = std::int64_t{1} << 30;
  if (slot_users > kMaxSlotUsers) throw invalid("k tiles times heads_kv", slot_users, "up to 2^30");
}

/// Appends the span of places [begin, end), whose k tiles have equally many splits.
void add_span(Schedule& schedule, const ScheduleInput& input, const Candidate& by,
              std::int32_t num_splits, Range places) {
  const TileCosts& tiles = input.tiles;
  const std::int32_t heads_kv = tiles.problem.heads_kv;
  TileSpan span;
  span.tile_begin = places.begin;
  span.num_tiles = places.end - places.begin;
  span.num_splits = num_splits;
  span.groups_per_item = tiles.groups / num_splits;
  const bool is_tail = places.begin >= schedule.tail_begin;
  span.section_heads = is_tail ? heads_kv : count_section_heads(input, by, span, schedule.order);
  if (tiles.awaits_keys(schedule.order[static_cast<std::size_t>(places.begin)])) {
    span.section_heads = within_arrival_chunk(tiles.problem, span.section_heads);
  }
  span.block_tiles = count_block_tiles(tiles, span);
  if (num_splits > 1) span.slot_heads = count_slot_heads(tiles.problem, span);
  const std::int64_t begin = schedule.num_items();
  const std::int64_t end = begin + std::int64_t{span.num_tiles} * num_splits * heads_kv;
  check_size(end, std::ssize(tiles.steps) * heads_kv);
  span.item_begin = static_cast<std::int32_t>(begin);
  span.item_end = static_cast<std::int32_t>(end);
  if (!schedule.spans.empty()) {
    const TileSpan& last = schedule.spans.back();
    span.slot_begin = last.slot_begin + last.block_tiles * last.slot_heads;
  }
  schedule.spans.push_back(span);
}

/// Sorts the places before the tail by number of splits and length of component, the k tiles of a
/// component side by side. k tiles that wait for keys stay after the others.
void sort_before_tail(Schedule& schedule, const TileCosts& tiles,
                      const std::vector<std::int32_t>& splits) {
  if (tiles.is_nested) return;
  const auto comes_before = [&](std::int32_t left, std::int32_t right) {
    const auto a = static_cast<std::size_t>(left);
    const auto b = static_cast<std::size_t>(right);
    if (tiles.awaits_keys(left) != tiles.awaits_keys(right)) return tiles.awaits_keys(right);
    if (splits[a] != splits[b]) return splits[a] > splits[b];
    if ((tiles.steps[a] == 0) != (tiles.steps[b] == 0)) return tiles.steps[b] == 0;
    if (!tiles.is_uneven) return false;
    if (tiles.longest_of[a] != tiles.longest_of[b]) {
      return tiles.longest_of[a] > tiles.longest_of[b];
    }
    return tiles.component_of[a] < tiles.component_of[b];
  };
  std::stable_sort(schedule.order.begin(), schedule.order.begin() + schedule.tail_begin,
                   comes_before);
}

/// Returns the number of items into which each k tile is split.
std::vector<std::int32_t> split_tiles(const Schedule& schedule, const TileCosts& tiles,
                                      const CandidateSplits& candidate_splits) {
  std::vector<std::int32_t> splits(tiles.steps.size(), 1);
  const std::int32_t of_in_flight =
      tiles.is_in_flight.empty() ? 1 : candidate_splits.of_in_flight();
  for (std::size_t place = 0; place < schedule.order.size(); ++place) {
    const std::int32_t tile = schedule.order[place];
    if (tiles.steps_of(tile) == 0) continue;
    std::int32_t& count = splits[static_cast<std::size_t>(tile)];
    if (tiles.awaits_keys(tile)) {
      count = of_in_flight;
    } else {
      count = static_cast<std::int32_t>(place) < schedule.tail_begin
                  ? candidate_splits.before_tail(tile)
                  : candidate_splits.in_tail(tile);
    }
  }
  return splits;
}

}  // namespace

std::vector<std::int32_t> allowed_splits(const TileCosts& tiles, const BackwardChoice& choice) {
  if (choice.heads_per_item > 0) {
    return {tiles.groups * tiles.packed_heads / choice.heads_per_item};
  }
  std::vector<std::int32_t> counts = {1};
  // Each number of splits has two spans, before the tail and in it; k tiles without records have
  // two more, and those that wait for keys one.
  const std::size_t num_in_flight = tiles.is_in_flight.empty() ? 0 : 1;
  while (counts.back() < tiles.groups && counts.size() + 1 < (kMaxSpans - num_in_flight) / 2) {
    const std::int32_t rest = tiles.groups / counts.back();
    std::int32_t factor = 2;
    while (rest % factor != 0) ++factor;
    counts.push_back(counts.back() * factor);
  }
  return counts;
}

Candidate first_candidate(const TileCosts& tiles) {
  if (!tiles.is_uneven) {
    const std::int64_t steps = std::max<std::int64_t>(tiles.longest() * tiles.groups, 1);
    return {.item_steps = steps, .tail_steps = steps};
  }
  const auto steps = std::max<std::int64_t>(tiles.policy.uneven_item.of(tiles.cached_steps), 1);
  return {.item_steps = steps, .tail_steps = std::min(steps, tiles.policy.uneven_tail)};
}

Schedule make_schedule(const ScheduleInput& input, const Candidate& by) {
  const TileCosts& tiles = input.tiles;
  const CandidateSplits candidate_splits(input, by);
  Schedule schedule;
  set_order(schedule, tiles, by, candidate_splits);
  schedule.has_wide_sections = by.section_factor > 1;
  const auto num_tiles = static_cast<std::int32_t>(tiles.steps.size());
  const std::vector<std::int32_t> splits = split_tiles(schedule, tiles, candidate_splits);
  sort_before_tail(schedule, tiles, splits);
  const auto kind_at = [&](std::int32_t place) {
    const std::int32_t tile = schedule.order[static_cast<std::size_t>(place)];
    return std::tuple{splits[static_cast<std::size_t>(tile)], tiles.steps_of(tile) == 0,
                      tiles.awaits_keys(tile)};
  };
  for (std::int32_t begin = 0, end = 0; begin < num_tiles; begin = end) {
    const std::int32_t most = begin < schedule.tail_begin ? schedule.tail_begin : num_tiles;
    while (end < most && kind_at(end) == kind_at(begin)) ++end;
    add_span(schedule, input, by, std::get<0>(kind_at(begin)), {begin, end});
  }
  return schedule;
}

}  // namespace magi
