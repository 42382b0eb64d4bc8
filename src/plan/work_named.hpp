// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "plan/work_scale.hpp"

// Searches by the names that MagiAttention gives to their ideas. Each says which rank computes each
// tile; all are pure.
namespace magi::planner {

/// Every tile at the owner of its queries: keys alone travel.
std::vector<std::int32_t> share_to_owners(const WorkScale& work);

/// Random restarts, then parts of the best are drawn anew. Tiles whose queries and keys have one
/// owner stay there.
std::vector<std::int32_t> share_by_random_grids(const WorkScale& work);

/// The least budget of traffic under which whole tiles, given out one by one, leave no rank more
/// than a tenth above the mean. `num_at_once` budgets are tried side by side, on threads.
std::vector<std::int32_t> share_greedily(const WorkScale& work, std::int32_t num_at_once);

enum class FlowGrain {
  Fine,    ///< rows are chosen in eight passes; tiles flow one by one to ranks with their rows
  Coarse,  ///< rows are chosen in one pass; tiles that the same ranks may compute flow as one
};
/// The least budget of traffic under which areas can flow to ranks evenly. A tile goes where most
/// of it flows, so areas are even only about.
std::vector<std::int32_t> share_by_flow(const WorkScale& work, FlowGrain grain);

}  // namespace magi::planner
