// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/placement/classic.hpp"

namespace magi {

struct AssignmentCost {
  std::int64_t largest_area = 0;
  std::int64_t remote_rows = 0;  ///< sum over ranks, exact
};

/// Area of the heaviest rank.
std::int64_t largest_area(const ChunkTable& table, const Assignment& rank_of,
                          std::int32_t num_ranks);

AssignmentCost evaluate(const ChunkTable& table, const Assignment& rank_of, std::int32_t num_ranks);

}  // namespace magi
