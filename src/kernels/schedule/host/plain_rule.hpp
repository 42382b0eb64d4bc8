// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/host_device.hpp"

// How a plain schedule hands out its k tiles: the arithmetic that host and device share. In front
// of the tail, k tiles of a component lie side by side, those of the longest component first, in
// sections of few kv heads; in the tail come the shortest k tiles of all kv heads.
namespace magi {

/// No k tile counts more steps.
inline constexpr std::int32_t kMaxPlainSteps = 1 << 30;

// Measured constants of the rule (H200; docs/kernels/schedules.md). The searched schedule has its
// own in SchedulePolicy, where the words are explained.
/// The tail keeps every CTA busy for one such share of the longest item.
inline constexpr std::int64_t kPlainTailShare = 4;
/// A list is uneven if it would have more than 3/2 of its steps, were every k tile as long as the
/// longest of its component.
inline constexpr std::int64_t kPlainUnevenHalves = 3;
/// CTAs that meet at a sum begin so many halves of a step apart, in uneven lists and in even ones.
inline constexpr std::int64_t kPlainUnevenDistance = 6;
inline constexpr std::int64_t kPlainEvenDistance = 9;

/// The values that the schedule of a list depends on besides its k tiles.
struct PlainRule {
  std::int32_t num_ctas = 1;
  std::int32_t heads_kv = 1;
  std::int32_t groups = 1;    ///< head groups of a kv head
  std::int32_t overhead = 0;  ///< cost of an item besides its steps
  bool may_be_uneven = true;  ///< see SchedulePolicy::even_head_dims
  /// kv heads of a section of an even list, at least; 0: as many as let every CTA begin.
  std::int32_t even_heads = 0;
};

/// Sums over the k tiles of a list.
struct PlainSums {
  std::int64_t steps = 0;
  std::int64_t longest_steps = 0;  ///< were every k tile as long as the longest of its component
};

/// The cost of an item whose k tile has so many steps.
MAGI_HOST_DEVICE std::int64_t plain_cost(const PlainRule& rule, std::int64_t steps) {
  return steps * rule.groups + rule.overhead;
}

/// The tail costs at least so much, if there is as much: CTAs that have no long item any more are
/// busy while others walk one.
MAGI_HOST_DEVICE std::int64_t plain_tail_cost(const PlainRule& rule, std::int64_t longest) {
  return rule.num_ctas * plain_cost(rule, longest) / kPlainTailShare;
}

/// kv heads of a section in front of the tail. The CTAs of an uneven list are all over the rows, so
/// it has just as many heads side by side as give every CTA an item while those that meet at a sum
/// keep their distance. An even one has some more, of which none waits. `num_tiles`, `steps`: of
/// the k tiles in front of the tail.
MAGI_HOST_DEVICE std::int32_t plain_section_heads(const PlainRule& rule, const PlainSums& all,
                                                  std::int64_t num_tiles, std::int64_t steps) {
  const bool is_uneven =
      rule.may_be_uneven && 2 * all.longest_steps > kPlainUnevenHalves * all.steps;
  const std::int64_t items = num_tiles * rule.num_ctas;
  const std::int64_t half_steps = 2 * (steps * rule.groups + 1);
  std::int64_t least = 0;
  if (is_uneven) {
    least = kPlainUnevenDistance * items / half_steps + 1;
  } else {
    const std::int64_t filling = rule.num_ctas / (num_tiles + 1) + 1;
    least = rule.even_heads > 0 ? rule.even_heads : kPlainEvenDistance * items / half_steps;
    if (filling > least) least = filling;
  }
  if (least >= rule.heads_kv) return rule.heads_kv;
  auto heads = static_cast<std::int32_t>(least);
  while (rule.heads_kv % heads != 0) ++heads;
  return heads;
}

/// The way the items of a list are handed out.
struct PlainOrder {
  std::int32_t num_tiles = 0;
  std::int32_t tail_begin = 0;  ///< place of the first k tile of the tail
  std::int32_t section_heads = 1;
};

/// The position at which the item of the k tile at `place` and a kv head is handed out.
MAGI_HOST_DEVICE std::int64_t plain_item(const PlainOrder& order, std::int32_t heads_kv,
                                         std::int32_t place, std::int32_t kv_head) {
  const std::int64_t tail = order.tail_begin;
  if (place >= order.tail_begin) return std::int64_t{place} * heads_kv + kv_head;
  const std::int32_t in_section = kv_head % order.section_heads;
  return (kv_head - in_section) * tail + std::int64_t{place} * order.section_heads + in_section;
}

}  // namespace magi
