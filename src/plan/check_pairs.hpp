// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "magi/plan.hpp"
#include "plan/check_structure.hpp"

namespace magi::planner {

/// Rows [local, local + num_rows) of a segment or shard hold global rows from `global` on, which
/// rank `owner` holds.
struct MappedRows {
  std::int32_t local = 0;
  std::int32_t global = 0;
  std::int32_t num_rows = 0;
  std::int32_t owner = 0;
};

/// Global rows of a rank's own rows, or of some of them, moved to start at `to`.
std::vector<MappedRows> map_own_rows(const Placement& placement, std::int32_t rank, Range local,
                                     std::int32_t to);

/// Global rows of every segment of a rank, ascending in local rows, as transfers fill them.
std::vector<std::vector<MappedRows>> map_segments(const Plan& plan, std::int32_t rank, Space space);

/// Every row that a rank's attends read and that it does not own arrives there exactly once, in
/// global order, and nothing else does. A sweep over all query rows of all slices.
void check_received(const Plan& plan, Problems& problems);

/// Every visible pair is attended to exactly as often as the mask has it.
void check_pairs(const Plan& plan, Problems& problems);

}  // namespace magi::planner
