// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "magi/plan.hpp"
#include "plan/work_even.hpp"
#include "plan/work_grid.hpp"
#include "plan/work_share.hpp"

namespace magi::planner {

/// Parts of a rank's run of rows in the grid of a search, about: finer ones save few bytes and take
/// longer.
std::int64_t parts_per_rank(WorkSearch search);

/// The pieces of a grid that each rank computes, grouped by rank, by the search of this name. Pure,
/// whatever the number of threads that a search uses. At most kMostRanksMovingQueries ranks.
std::vector<WorkPiece> search_work(WorkSearch search, const WorkGrid& grid, std::int32_t num_ranks,
                                   const RowCosts& costs);

}  // namespace magi::planner
