// SPDX-License-Identifier: Apache-2.0
#include "plan/check_returns.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace magi::planner {
namespace {

/// Each owner's rows go to one place at most: what leaves it, in order of rows, does not meet.
bool goes_once(const Plan& plan, Space space) {
  std::vector<const Transfer*> leaving;
  for (const Transfer& t : plan.transfers) {
    if (t.space == space) leaving.push_back(&t);
  }
  const auto by_row = [](const Transfer* t) { return std::pair(t->src, t->src_row); };
  std::ranges::sort(leaving, {}, by_row);
  std::int64_t end = 0;  // of rows of `owner` that have left
  std::int32_t owner = -1;
  for (const Transfer* t : leaving) {
    if (t->src == owner && t->src_row < end) return false;
    owner = t->src;
    end = std::int64_t{t->src_row} + t->num_rows;
  }
  return true;
}

/// No attend that sees anything reads own rows or merges, and none has a segment and head of
/// another.
bool is_made_once(const Plan& plan, const RankPlan& rank, Space space) {
  const auto num_heads = static_cast<std::size_t>(plan.config.num_heads_kv);
  const std::size_t num_segments = (space == Space::Keys ? rank.k : rank.q).segments.size();
  std::vector<bool> is_made(num_segments * num_heads, false);
  for (const Attend& attend : rank.attends) {
    if (attend.slices.begin == attend.slices.end) continue;
    const auto segment =
        static_cast<std::size_t>(space == Space::Keys ? attend.k_segment : attend.q_segment);
    if (segment == 0 || attend.is_merging) return false;
    for (std::int32_t head = attend.heads.begin; head < attend.heads.end; ++head) {
      std::vector<bool>::reference made =
          is_made[segment * num_heads + static_cast<std::size_t>(head)];
      if (made) return false;
      made = true;
    }
  }
  return true;
}

}  // namespace

ReturnsOnce returns_once(const Plan& plan) {
  for (const Exchange& exchange : plan.exchanges) {
    if (exchange.hop != 0) return {};
  }
  const auto is_once = [&plan](Space space) {
    const auto makes_once = [&](const RankPlan& rank) { return is_made_once(plan, rank, space); };
    return std::ranges::all_of(plan.ranks, makes_once) && goes_once(plan, space);
  };
  return {.queries = is_once(Space::Queries), .keys = is_once(Space::Keys)};
}

}  // namespace magi::planner
