// SPDX-License-Identifier: Apache-2.0
#include "plan/placement/evaluate.hpp"

#include <algorithm>

namespace magi {

std::int64_t largest_area(const ChunkTable& table, const Assignment& rank_of,
                          std::int32_t num_ranks) {
  std::vector<std::int64_t> load(static_cast<std::size_t>(num_ranks), 0);
  for (std::size_t c = 0; c < rank_of.size(); ++c) {
    load[static_cast<std::size_t>(rank_of[c])] += table.area[c];
  }
  return *std::max_element(load.begin(), load.end());
}

AssignmentCost evaluate(const ChunkTable& table, const Assignment& rank_of,
                        std::int32_t num_ranks) {
  std::vector<std::vector<std::int32_t>> chunks(static_cast<std::size_t>(num_ranks));
  for (std::size_t c = 0; c < rank_of.size(); ++c) {
    chunks[static_cast<std::size_t>(rank_of[c])].push_back(static_cast<std::int32_t>(c));
  }
  AssignmentCost cost;
  cost.largest_area = largest_area(table, rank_of, num_ranks);
  std::vector<Range> needed;
  std::vector<Range> own;
  for (const std::vector<std::int32_t>& held : chunks) {
    needed.clear();
    own.clear();
    for (const std::int32_t chunk : held) {
      const std::span<const Range> keys = table.keys_of(chunk);
      needed.insert(needed.end(), keys.begin(), keys.end());
      own.push_back(table.rows(chunk));
    }
    merge_ranges(needed);
    cost.remote_rows += count_rows(needed) - intersection_rows(needed, own);
  }
  return cost;
}

}  // namespace magi
