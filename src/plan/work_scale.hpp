// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "plan/work_grid.hpp"
#include "plan/work_share.hpp"

namespace magi::planner {

inline constexpr std::int64_t kShardUnit = 1 << 20;  ///< cost of a mean shard of the dearer side
inline constexpr std::int64_t kLoadUnit = 1 << 20;   ///< area of a rank in the mean

/// A grid in integers that fit together whatever the sequence and the heads.
struct WorkScale {
  const WorkGrid& grid;
  std::int32_t num_ranks = 1;
  std::vector<std::int64_t> cost_q;  ///< of each part, to a rank that reads and does not own it
  std::vector<std::int64_t> cost_k;
  std::vector<std::int64_t> areas;  ///< of each tile

  WorkScale(const WorkGrid& cut, std::int32_t ranks, const RowCosts& costs);

  std::int32_t owner_q(const WorkTile& tile) const {
    return grid.q[static_cast<std::size_t>(tile.q)].owner;
  }
  std::int32_t owner_k(const WorkTile& tile) const {
    return grid.k[static_cast<std::size_t>(tile.k)].owner;
  }
  /// What a rank pays for the rows of a tile that it does not own.
  std::int64_t cost_of(const WorkTile& tile, std::int32_t rank) const {
    return (owner_q(tile) == rank ? 0 : cost_q[static_cast<std::size_t>(tile.q)]) +
           (owner_k(tile) == rank ? 0 : cost_k[static_cast<std::size_t>(tile.k)]);
  }
};

/// Areas of ranks under a sharing out of the tiles.
std::vector<std::int64_t> loads_of(const WorkScale& work, const std::vector<std::int32_t>& rank_of);

}  // namespace magi::planner
