// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "magi/plan.hpp"

namespace magi::planner {

/// A row of one chunk comes after a row of another; see magi::Run.
struct ChunkLink {
  std::int32_t child = 0;
  std::int32_t parent = 0;
};
/// None for cross-attention, whose keys are no rows of the queries' sequence.
std::vector<ChunkLink> links_of_chunks(const Mask& mask, std::int32_t chunk_size);

/// PlanReport::rank_runs.
std::vector<std::int64_t> count_runs(const std::vector<ChunkLink>& links,
                                     std::span<const std::int32_t> chunk_rank,
                                     std::int32_t num_ranks);
std::vector<std::int64_t> count_runs(const Mask& mask, const Placement& placement);

}  // namespace magi::planner
