// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "plan/travel/grid.hpp"
#include "plan/travel/share.hpp"

namespace magi::planner {

/// Pairs that one rank computes, in global rows; shrunk.
struct WorkPiece {
  BandSlice slice;
  std::int32_t rank = 0;
};

/// The pieces of a shared-out grid, by rank, after parts of tiles went from ranks with more than
/// the mean area to ranks with less, where it costs least. Tiles are split at any row or key for
/// this, so that areas end within a thousandth of the mean wherever the rows allow it.
std::vector<WorkPiece> even_out(const WorkGrid& grid, const std::vector<std::int32_t>& rank_of,
                                std::int32_t num_ranks, const RowCosts& costs);

}  // namespace magi::planner
