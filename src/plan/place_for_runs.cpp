// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <string>

#include "base/check.hpp"
#include "plan/place_rows.hpp"
#include "plan/value/runs.hpp"

namespace magi::planner {

std::vector<Placement> placements_for_runs(const Mask& mask, const PlanConfig& config) {
  std::vector<Placement> found;
  PlacementConfig how = config.placement;
  // `parts` chunks are placed as one.
  const auto add = [&](std::int32_t parts, bool is_for_step) {
    Placement joined =
        place(mask, config.num_ranks, how, {config.devices_per_node, crossing_price(config.cost)});
    if (is_for_step) joined = place_for_step(mask, config, joined);
    std::vector<std::int32_t> chunk_rank;
    for (const std::int32_t rank : joined.chunk_rank) {
      chunk_rank.insert(chunk_rank.end(), static_cast<std::size_t>(parts), rank);
    }
    Placement placement = placement_from_chunks(joined.num_rows, joined.chunk_size / parts,
                                                joined.num_ranks, std::move(chunk_rank));
    if (is_for_step && parts > 1) placement = place_for_step(mask, config, placement);
    if (std::ranges::find(found, placement) == found.end()) found.push_back(std::move(placement));
  };
  add(1, false);
  const bool is_searching = how.algorithm == PlacementAlgorithm::Auto ||
                            how.algorithm == PlacementAlgorithm::Thorough ||
                            how.algorithm == PlacementAlgorithm::Affinity;
  if (!is_searching) return require_few_runs(mask, config, std::move(found));
  add(1, true);
  for (const auto form : {PlacementAlgorithm::SequentialSelect, PlacementAlgorithm::Zigzag}) {
    how.algorithm = form;
    for (const bool is_for_step : {false, true}) add(1, is_for_step);
  }
  how = config.placement;
  how.min_chunks_per_rank = 1;
  const std::int32_t num_chunks = found.front().num_chunks();
  const std::int32_t chunk_size = found.front().chunk_size;
  for (std::int32_t parts = 2; parts <= num_chunks / config.num_ranks / 2; parts *= 2) {
    if (num_chunks % (config.num_ranks * parts) != 0) break;
    how.chunk_size = chunk_size * parts;
    for (const bool is_for_step : {false, true}) add(parts, is_for_step);
  }
  return require_few_runs(mask, config, std::move(found));
}

std::vector<Placement> require_few_runs(const Mask& mask, const PlanConfig& config,
                                        std::vector<Placement> placements) {
  if (!config.max_runs) return placements;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  std::erase_if(placements, [&](const Placement& placement) {
    const std::int64_t most = std::ranges::max(count_runs(mask, placement));
    least = std::min(least, most);
    return most > *config.max_runs;
  });
  if (!placements.empty()) return placements;
  throw invalid("max_runs", *config.max_runs,
                std::to_string(least) + " or more, the runs of a rank under this placement");
}

}  // namespace magi::planner
