// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/host_device.hpp"
#include "kernels/schedule/host/item_order.hpp"

// How a plain schedule walks and hands out its k tiles: the arithmetic that host and device share.
// It follows the searched schedule (schedule_policy.hpp, where the words are explained) as far as
// sums, maxima and sorts of integers tell.
namespace magi {

/// No k tile counts more steps.
inline constexpr std::int32_t kMaxPlainSteps = 1 << 30;
/// Numbers of splits that k tiles of a list may have.
inline constexpr int kPlainSplits = 4;
/// A record that shares sums with more others leaves conversions to the dQ convert kernel.
inline constexpr std::int32_t kMostPlainOthers = 32;
/// Longer lists have no splits.
inline constexpr std::int64_t kMostPlainSplitTiles = 8192;
/// Spans of a list: k tiles of as many splits, before the tail and in it, most splits first.
inline constexpr int kPlainSpans = 2 * kPlainSplits;
static_assert(kPlainSpans <= kMaxSpans);

// Measured constants of the rule (docs/kernels/schedules.md). The searched schedule has its own in
// SchedulePolicy.
/// The tail keeps every CTA busy for 1 / kPlainTailShare of the longest item.
inline constexpr std::int64_t kPlainTailShare = 8;
/// Half steps between the starts of CTAs that meet at an ordered sum of an uneven list.
inline constexpr std::int64_t kPlainUnevenDistance = 3;
/// The same in even lists.
inline constexpr std::int64_t kPlainEvenDistance = 9;
/// Items of a global k tile take at most 1 / kPlainGlobalShare of the mean time of a CTA.
inline constexpr std::int64_t kPlainGlobalShare = 3;
/// Items that the section of an unordered list has for each CTA.
inline constexpr std::int64_t kPlainRounds = 2;

/// The values that the schedule of a list depends on besides its k tiles.
struct PlainRule {
  std::int32_t num_ctas = 1;
  std::int32_t heads_kv = 1;
  std::int32_t groups = 1;  ///< head groups of a kv head
  std::int32_t packed_heads = 1;
  std::int32_t num_q_tiles = 0;
  std::int32_t overhead = 0;     ///< cost of an item besides its steps
  bool may_be_uneven = true;     ///< see SchedulePolicy::even_head_dims
  bool may_be_unordered = true;  ///< the caller does not ask for equal bits
  bool has_converter = false;    ///< see BackwardTileShape
  /// kv heads of a section of an ordered even list, at least; 0: as many as let every CTA begin.
  std::int32_t even_heads = 0;
  std::int64_t item_steps = 1;  ///< of items of an uneven list, and of those in its tail
  std::int64_t tail_steps = 1;
  std::int64_t conversion_distance = 0;                    ///< see SchedulePolicy
  std::int32_t split_counts[kPlainSplits] = {1, 1, 1, 1};  ///< ascending
};

/// Sums over the k tiles of a list. Wide k tiles are not narrow, see SchedulePolicy::narrow_tile.
struct PlainSums {
  std::int64_t num_tiles = 0;
  std::int64_t steps = 0;
  std::int64_t longest_steps = 0;  ///< were every k tile as long as the longest of its component
  std::int64_t longest = 0;        ///< steps of the longest
  std::int64_t num_wide = 0;
  std::int64_t wide_steps = 0;
  std::int64_t longest_narrow = 0;  ///< steps of the longest that is not wide
};

/// Tells how the items of a list walk and add, and how long they are.
struct PlainWalk {
  bool is_ordered = true;  ///< see BackwardList
  bool is_narrow = false;  ///< narrow, with few additions to a sum
  bool is_global = false;  ///< has few k tiles that all queries see, in a narrow mask
  bool is_uneven = false;
  bool is_converting = false;   ///< see Walk::conversion_distance; if there is one component
  std::int64_t most_steps = 0;  ///< of an item of a list that is not uneven
};

MAGI_HOST_DEVICE bool is_plain_wide(const PlainRule& rule, std::int64_t steps) {
  return 2 * steps >= rule.num_q_tiles;
}

MAGI_HOST_DEVICE PlainWalk plain_walk(const PlainRule& rule, const PlainSums& sums) {
  PlainWalk walk;
  walk.is_global = sums.num_wide > 0 && 16 * sums.num_wide <= sums.num_tiles;
  const std::int64_t steps = sums.steps - (walk.is_global ? sums.wide_steps : 0);
  const std::int64_t longest = walk.is_global ? sums.longest_narrow : sums.longest;
  const std::int64_t num_tiles = sums.num_tiles - (walk.is_global ? sums.num_wide : 0);
  walk.is_narrow = !is_plain_wide(rule, longest) && steps < std::int64_t{10} * rule.num_q_tiles;
  walk.is_ordered = walk.is_narrow || !rule.may_be_unordered;
  walk.is_converting = walk.is_narrow && rule.has_converter && 4 * longest * num_tiles <= 5 * steps;
  walk.is_uneven = rule.may_be_uneven && !walk.is_global && 3 * sums.longest_steps > 4 * sums.steps;
  const std::int64_t mean = sums.steps * rule.groups * rule.heads_kv / rule.num_ctas;
  walk.most_steps = walk.is_global ? mean / kPlainGlobalShare : mean + mean / 3;
  return walk;
}

/// The place of a k tile's number of splits among rule.split_counts. Before the tail of an uneven
/// list `steps` is that of its component's longest k tile, so that rows are walked once a head.
MAGI_HOST_DEVICE std::int32_t plain_split(const PlainRule& rule, const PlainWalk& walk,
                                          std::int64_t steps, bool is_tail) {
  const std::int64_t least = is_tail ? rule.tail_steps : rule.item_steps;
  std::int32_t split = 0;
  for (std::int32_t i = 1; i < kPlainSplits; ++i) {
    const std::int32_t count = rule.split_counts[i];
    if (count == rule.split_counts[split]) break;
    const std::int32_t groups = rule.groups / count;
    const bool is_long = steps * groups >= least && groups * rule.packed_heads >= 2;
    const bool is_too_long = steps * (rule.groups / rule.split_counts[split]) > walk.most_steps;
    if (!(walk.is_uneven ? is_long : is_too_long)) break;
    split = i;
  }
  return split;
}

/// The cost of one of `num_splits` items of a k tile with `steps` steps.
MAGI_HOST_DEVICE std::int64_t plain_cost(const PlainRule& rule, std::int64_t steps,
                                         std::int32_t num_splits = 1) {
  return steps * (rule.groups / num_splits) + rule.overhead;
}

/// The least cost of the tail, unless the whole list costs less: it keeps CTAs that find no long
/// item any more busy while others walk one.
MAGI_HOST_DEVICE std::int64_t plain_tail_cost(const PlainRule& rule, const PlainWalk& walk,
                                              std::int64_t longest) {
  const std::int32_t num_splits = rule.split_counts[plain_split(rule, walk, longest, false)];
  return rule.num_ctas * plain_cost(rule, longest, num_splits) / kPlainTailShare;
}

/// The numbers of k tiles of a list by the place of their number of splits.
struct PlainCounts {
  std::int32_t in_front[kPlainSplits] = {};
  std::int32_t in_tail[kPlainSplits] = {};
};

/// kv heads of a section before the tail. An unordered list has as few side by side as give every
/// CTA its items. In a narrow uneven list CTAs are all over the rows, so it has just as many as
/// give every CTA an item while CTAs that meet at a sum keep their distance. Other ordered uneven
/// lists have long chains, and all heads side by side. An even list has some more than it needs,
/// so that no CTA waits. `steps`: the sum over the k tiles before the tail.
MAGI_HOST_DEVICE std::int32_t plain_section_heads(const PlainRule& rule, const PlainWalk& walk,
                                                  const PlainCounts& counts, std::int64_t steps) {
  std::int64_t num_tiles = 0;
  std::int64_t num_items = 0;
  for (int i = 0; i < kPlainSplits; ++i) {
    num_tiles += counts.in_front[i];
    num_items += std::int64_t{counts.in_front[i]} * rule.split_counts[i];
  }
  const std::int64_t half_steps = 2 * (steps * rule.groups + 1);
  std::int64_t least = rule.heads_kv;
  if (!walk.is_ordered && !walk.is_global) {
    least = kPlainRounds * rule.num_ctas / (num_items + 1) + 1;
  } else if (walk.is_uneven && walk.is_narrow && (rule.packed_heads > 1 || rule.groups == 1)) {
    least = kPlainUnevenDistance * num_tiles * rule.num_ctas / half_steps + 1;
  } else if (!walk.is_uneven && !walk.is_global) {
    const std::int64_t filling = rule.num_ctas / (num_tiles + 1) + 1;
    least = rule.even_heads > 0 ? rule.even_heads
                                : kPlainEvenDistance * num_tiles * rule.num_ctas / half_steps;
    if (filling > least) least = filling;
  }
  if (least >= rule.heads_kv) return rule.heads_kv;
  auto heads = static_cast<std::int32_t>(least);
  while (rule.heads_kv % heads != 0) ++heads;
  return heads;
}

/// The place of a span's number of splits among rule.split_counts; `span` is below kPlainSpans.
MAGI_HOST_DEVICE std::int32_t plain_split_of_span(int span) {
  return kPlainSplits - 1 - span % kPlainSplits;
}

/// Makes the spans; some may be empty. Slots are numbered from one span to the next.
MAGI_HOST_DEVICE void make_plain_spans(const PlainRule& rule, const PlainCounts& counts,
                                       std::int32_t section_heads, TileSpan* spans) {
  TileSpan last;
  for (int i = 0; i < kPlainSpans; ++i) {
    const std::int32_t split = plain_split_of_span(i);
    const bool is_tail = i >= kPlainSplits;
    TileSpan span;
    span.num_tiles = is_tail ? counts.in_tail[split] : counts.in_front[split];
    span.tile_begin = i == 0 ? 0 : last.tile_begin + last.num_tiles;
    span.num_splits = rule.split_counts[split];
    span.groups_per_item = rule.groups / span.num_splits;
    span.section_heads = is_tail ? rule.heads_kv : section_heads;
    span.block_tiles = span.num_tiles;
    span.item_begin = last.item_end;
    span.item_end = span.item_begin + span.num_tiles * span.num_splits * rule.heads_kv;
    span.slot_begin = last.slot_begin + last.block_tiles * last.slot_heads;
    span.slot_heads = span.num_splits > 1 ? rule.heads_kv : 0;
    spans[i] = last = span;
  }
}

/// Makes a span of a frame, in which each span has room for all k tiles, `max_tiles`. The place of
/// an item in it follows from the item alone. All spans share the slots, one for each k tile and
/// kv head.
MAGI_HOST_DEVICE TileSpan plain_frame_span(const PlainRule& rule, std::int32_t max_tiles,
                                           std::int32_t item_begin, int index) {
  TileSpan span;
  span.num_tiles = span.block_tiles = max_tiles;
  span.num_splits = rule.split_counts[plain_split_of_span(index)];
  span.groups_per_item = rule.groups / span.num_splits;
  span.section_heads = rule.heads_kv;
  span.item_begin = item_begin;
  span.item_end = item_begin + max_tiles * span.num_splits * rule.heads_kv;
  span.slot_heads = span.num_splits > 1 ? rule.heads_kv : 0;
  return span;
}

/// The place of an item in its span of a frame.
MAGI_HOST_DEVICE std::int32_t place_in_frame(const TileSpan& span, const BackwardItem& item) {
  return span.item_begin + (item.split * span.num_tiles + item.tile) * span.section_heads +
         item.kv_head;
}

}  // namespace magi
