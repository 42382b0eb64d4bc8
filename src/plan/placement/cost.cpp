// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "magi/placement.hpp"
#include "plan/placement/chunk_table.hpp"

namespace magi {
namespace {

/// The rows a rank holds: its chunks, neighbours joined.
std::vector<Range> own_rows(const Placement& placement, std::int32_t rank) {
  std::vector<Range> own;
  for (const std::int32_t chunk : placement.chunks_of(rank)) {
    const Range rows = placement.chunk_rows(chunk);
    if (!own.empty() && own.back().end == rows.begin) {
      own.back().end = rows.end;
    } else {
      own.push_back(rows);
    }
  }
  return own;
}

}  // namespace

PlacementCost placement_cost(const Mask& mask, const Placement& placement) {
  validate(mask);
  static_cast<void>(area(mask));  // sums over chunks and ranks then fit int64
  if (mask.rows_q > placement.num_rows) {
    throw invalid("rows of the placement", placement.num_rows,
                  "at least the mask's " + std::to_string(mask.rows_q) + " query rows");
  }
  const ChunkTable table = make_chunk_table(mask, placement.num_rows, placement.chunk_size);
  PlacementCost cost;
  cost.area.assign(static_cast<std::size_t>(placement.num_ranks), 0);
  cost.remote_rows.assign(static_cast<std::size_t>(placement.num_ranks), 0);
  std::vector<Range> needed;
  for (std::int32_t rank = 0; rank < placement.num_ranks; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    needed.clear();
    for (const std::int32_t chunk : placement.chunks_of(rank)) {
      cost.area[r] += table.area[static_cast<std::size_t>(chunk)];
      const std::span<const Range> keys = table.keys_of(chunk);
      needed.insert(needed.end(), keys.begin(), keys.end());
    }
    merge_ranges(needed);
    cost.remote_rows[r] = count_rows(needed) - intersection_rows(needed, own_rows(placement, rank));
  }
  const std::int64_t total = std::accumulate(cost.area.begin(), cost.area.end(), std::int64_t{0});
  const std::int64_t heaviest = *std::max_element(cost.area.begin(), cost.area.end());
  if (total > 0) {
    cost.balance = static_cast<double>(heaviest) * static_cast<double>(placement.num_ranks) /
                   static_cast<double>(total);
  }
  return cost;
}

std::vector<std::int64_t> crossing_rows(const Mask& mask, const Placement& placement,
                                        std::int32_t devices_per_node) {
  if (devices_per_node < 1) throw invalid("devices_per_node", devices_per_node, "1 or more");
  std::vector<std::int32_t> chunk_node;
  chunk_node.reserve(placement.chunk_rank.size());
  for (const std::int32_t rank : placement.chunk_rank)
    chunk_node.push_back(rank / devices_per_node);
  const std::int32_t num_nodes = (placement.num_ranks - 1) / devices_per_node + 1;
  return placement_cost(mask, placement_from_chunks(placement.num_rows, placement.chunk_size,
                                                    num_nodes, std::move(chunk_node)))
      .remote_rows;
}

}  // namespace magi
