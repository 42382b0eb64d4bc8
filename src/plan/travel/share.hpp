// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "plan/travel/grid.hpp"

namespace magi::planner {

/// The cost of a rank that reads one row which it does not own, in bytes over both passes.
struct RowCosts {
  std::int64_t q = 0;  ///< the query there; its results and gradient back
  std::int64_t k = 0;  ///< the key and value there, twice; their gradients back
};

/// The length of the search. [moves tried for each tile]
struct WorkEffort {
  std::int32_t moves_per_tile = 200;
  std::int64_t most_moves = 400'000;
};

/// Which rank computes each tile (in the order of grid.tiles): few bytes for about equal areas.
/// Ranks own rows as the grid says. Starts with each tile at the owner of its queries and tries
/// moves of a tile, of a rank's tiles in one row of the grid, or in one column, to another rank;
/// one that costs less than a threshold is made, and the threshold falls to 0 (threshold accepting:
/// Dueck, Scheuer, 1990). Area above the mean has a price. Integers alone, and a fixed stream of
/// numbers: the same grid gives the same result on every machine.
std::vector<std::int32_t> share_work(const WorkGrid& grid, std::int32_t num_ranks,
                                     const RowCosts& costs, const WorkEffort& effort);

}  // namespace magi::planner
