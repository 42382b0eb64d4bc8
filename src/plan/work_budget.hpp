// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "plan/work_scale.hpp"

namespace magi::planner {

/// Bit r: rank r. Searches that use it are for at most 64 ranks.
using RankSet = std::uint64_t;

constexpr RankSet only(std::int32_t rank) { return RankSet{1} << rank; }

/// Ranks that may read each part: its owner, and those that it is sent to.
struct ReadSets {
  std::vector<RankSet> q;
  std::vector<RankSet> k;

  /// Ranks that may compute a tile, none perhaps.
  RankSet of(const WorkTile& tile) const {
    return q[static_cast<std::size_t>(tile.q)] & k[static_cast<std::size_t>(tile.k)];
  }
};

/// Owners alone.
ReadSets owned_rows(const WorkScale& work);

/// Parts for ranks so that no rank sends or receives more than `budget`: those first by which a
/// rank gets most area for the cost. The area of a tile counts whole for a rank that may read its
/// other part, else a rank's share of it. The budget is released in `num_rounds` equal steps, and
/// what a part is worth is counted anew for each.
ReadSets choose_rows(const WorkScale& work, std::int64_t budget, std::int32_t num_rounds);

/// What a rank sends or receives at most.
std::int64_t largest_budget(const WorkScale& work);

/// Whether areas are even enough under a budget.
using BudgetTry = std::function<bool(std::int64_t budget)>;

struct BudgetSearch {
  std::int64_t width = 1;        ///< ends where the interval is no wider
  std::int32_t num_at_once = 1;  ///< budgets tried between its ends, side by side on threads
};

/// The least budget found that suffices, by dividing the interval from 0 to largest_budget again
/// and again; nothing where the largest does not. What a search tries must be pure.
std::optional<std::int64_t> least_budget(const WorkScale& work, const BudgetSearch& search,
                                         const BudgetTry& is_enough);

}  // namespace magi::planner
