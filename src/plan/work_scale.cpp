// SPDX-License-Identifier: Apache-2.0
#include "plan/work_scale.hpp"

#include <algorithm>
#include <cmath>

namespace magi::planner {
namespace {

std::vector<std::int64_t> costs_of(const std::vector<WorkPart>& parts, double row_cost) {
  std::vector<std::int64_t> costs;
  costs.reserve(parts.size());
  for (const WorkPart& part : parts) {
    costs.push_back(std::llround(static_cast<double>(part.rows()) * row_cost));
  }
  return costs;
}

}  // namespace

WorkScale::WorkScale(const WorkGrid& cut, std::int32_t ranks, const RowCosts& costs)
    : grid(cut), num_ranks(ranks) {
  const double shard_rows =
      static_cast<double>(std::max(cut.q.back().end, cut.k.back().end)) / ranks;
  const double unit = static_cast<double>(kShardUnit) / shard_rows /
                      static_cast<double>(std::max(costs.q, costs.k));
  cost_q = costs_of(cut.q, static_cast<double>(costs.q) * unit);
  cost_k = costs_of(cut.k, static_cast<double>(costs.k) * unit);
  const double mean = static_cast<double>(cut.total_area()) / ranks;
  areas.reserve(cut.tiles.size());
  for (const WorkTile& tile : cut.tiles) {
    areas.push_back(
        std::llround(static_cast<double>(tile.area) / mean * static_cast<double>(kLoadUnit)));
  }
}

std::vector<std::int64_t> loads_of(const WorkScale& work,
                                   const std::vector<std::int32_t>& rank_of) {
  std::vector<std::int64_t> loads(static_cast<std::size_t>(work.num_ranks));
  for (std::size_t t = 0; t < rank_of.size(); ++t) {
    loads[static_cast<std::size_t>(rank_of[t])] += work.areas[t];
  }
  return loads;
}

}  // namespace magi::planner
