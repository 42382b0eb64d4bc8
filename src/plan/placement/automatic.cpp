// SPDX-License-Identifier: Apache-2.0
#include "plan/placement/automatic.hpp"

#include <algorithm>
#include <utility>

#include "plan/placement/evaluate.hpp"

namespace magi {

Assignment place_affinity(const ChunkTable& table, const PlacementLimits& limits) {
  return place_min_heap(table, limits);
}

Assignment place_automatic(const Mask& /*mask*/, const ChunkTable& table,
                           const PlacementLimits& limits) {
  Assignment best = place_affinity(table, limits);
  AssignmentCost best_cost = evaluate(table, best, limits.num_ranks);
  const std::int64_t allowed =
      std::max(best_cost.largest_area, table.total_area() / limits.num_ranks / 100 * 101);
  for (const auto form : {&place_sequential, &place_zigzag}) {
    Assignment candidate = form(table, limits);
    const AssignmentCost cost = evaluate(table, candidate, limits.num_ranks);
    if (cost.largest_area <= allowed && cost.remote_rows < best_cost.remote_rows) {
      best = std::move(candidate);
      best_cost = cost;
    }
  }
  return best;
}

Assignment place_thorough(const Mask& mask, const ChunkTable& table,
                          const PlacementLimits& limits) {
  return place_automatic(mask, table, limits);
}

}  // namespace magi
