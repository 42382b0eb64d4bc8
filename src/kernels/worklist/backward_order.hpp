// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/worklist/backward_list.hpp"

// Which k tiles of a backward list come when, and how many items share one.
namespace magi {

/// q tiles of each k tile, for one head group.
using BackwardTileCosts = std::vector<std::int64_t>;

/// When the list's items would be done, in q tiles; its segments and how its items walk are
/// scratch.
std::int64_t modelled_time(BackwardList& list, const BackwardTileCosts& costs,
                           std::span<const std::int32_t> islands, const BackwardChoice& choice);

/// Puts the tiles of a list in order and fills its segments and how its items walk. `islands` are
/// those of the records.
void order_tiles(BackwardList& list, const BackwardTileCosts& costs,
                 std::span<const std::int32_t> islands, const BackwardChoice& choice);

}  // namespace magi
