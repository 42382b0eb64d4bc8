// SPDX-License-Identifier: Apache-2.0
#include "plan/value/whole_returns.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "plan/value/spaces.hpp"

namespace magi::planner {
namespace {

constexpr std::array kSpaces{Space::Keys, Space::Queries};

/// Whether no row of a rank fills more than one row of segments.
bool is_moved_once(const Plan& plan, Space space) {
  std::int64_t rows_left = 0;  // where more move than there are, some move twice
  for (const RankPlan& rank : plan.ranks) rows_left += space_of(rank, space).segments[0].num_rows;
  for (const Transfer& t : plan.transfers) {
    if (t.space == space) rows_left -= t.num_rows;
  }
  if (rows_left < 0) return false;
  std::vector<std::pair<std::int32_t, Range>> parts;  // by owner
  for (const Transfer& t : plan.transfers) {
    if (t.space == space) parts.push_back({t.src, {t.src_row, t.src_row + t.num_rows}});
  }
  std::ranges::sort(parts, {},
                    [](const auto& part) { return std::pair(part.first, part.second.begin); });
  const auto meets = [](const auto& a, const auto& b) {
    return a.first == b.first && b.second.begin < a.second.end;
  };
  return std::ranges::adjacent_find(parts, meets) == parts.end();
}

/// Whether no row and head of a space has parts of several attends of a rank, and none is merged
/// into others, which takes float32; those without slices give none.
bool makes_each_once(const std::vector<Attend>& attends, Space space) {
  for (auto a = attends.begin(); a != attends.end(); ++a) {
    if (a->slices.empty()) continue;
    if (segment_of(*a, space) == 0 || a->is_merging) return false;
    const bool is_met = std::any_of(attends.begin(), a, [&](const Attend& b) {
      return !b.slices.empty() && segment_of(b, space) == segment_of(*a, space) &&
             overlaps(b.heads, a->heads);
    });
    if (is_met) return false;
  }
  return true;
}

}  // namespace

WholeReturns::WholeReturns(const Plan& plan, std::int32_t num_shares) {
  const auto is_by_node = [](const Exchange& exchange) { return exchange.hop != 0; };
  if (num_shares == 1 || std::ranges::any_of(plan.exchanges, is_by_node)) return;
  for (const Space space : kSpaces) {
    is_moved_once_[static_cast<std::size_t>(space)] = is_moved_once(plan, space);
  }
  find(plan);
}

void WholeReturns::find(const Plan& plan) {
  for (const Space space : kSpaces) {
    const auto index = static_cast<std::size_t>(space);
    is_whole_[index] =
        is_moved_once_[index] && std::ranges::all_of(plan.ranks, [space](const RankPlan& rank) {
          return makes_each_once(rank.attends, space);
        });
  }
}

}  // namespace magi::planner
