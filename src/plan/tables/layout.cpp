// SPDX-License-Identifier: Apache-2.0
#include "plan/tables/layout.hpp"

#include <algorithm>
#include <string>

#include "base/check.hpp"
#include "base/math.hpp"

namespace magi::planner {

Layout make_layout(const Placement& placement) {
  Layout layout;
  layout.chunk_size = placement.chunk_size;
  const std::size_t num_chunks = placement.chunk_rank.size();
  const auto num_ranks = static_cast<std::size_t>(placement.num_ranks);
  layout.rank_rows.assign(num_ranks, 0);
  layout.rank_begin.assign(num_ranks + 1, 0);
  layout.chunk_run.resize(num_chunks);
  layout.runs.reserve(num_chunks);
  std::int32_t begin = 0;
  for (std::size_t chunk = 0; chunk < num_chunks; ++chunk) {
    const std::int32_t rank = placement.chunk_rank[chunk];
    const std::int32_t rows = std::min(placement.chunk_size, placement.num_rows - begin);
    std::int32_t& local = layout.rank_rows[static_cast<std::size_t>(rank)];
    if (!layout.runs.empty() && layout.runs.back().rank == rank) {
      layout.runs.back().end += rows;
    } else {
      layout.runs.push_back({begin, begin + rows, rank, local});
      ++layout.rank_begin[static_cast<std::size_t>(rank) + 1];
    }
    layout.chunk_run[chunk] = static_cast<std::int32_t>(layout.runs.size()) - 1;
    local += rows;
    begin += rows;
  }
  for (std::size_t r = 0; r < num_ranks; ++r) layout.rank_begin[r + 1] += layout.rank_begin[r];
  layout.rank_runs.resize(layout.runs.size());
  std::vector<std::int32_t> cursor(layout.rank_begin.begin(), layout.rank_begin.end() - 1);
  for (std::size_t run = 0; run < layout.runs.size(); ++run) {
    std::int32_t& slot = cursor[static_cast<std::size_t>(layout.runs[run].rank)];
    layout.rank_runs[static_cast<std::size_t>(slot++)] = static_cast<std::int32_t>(run);
  }
  return layout;
}

void validate_placement(const Placement& placement, const char* name, std::int32_t rows,
                        std::int32_t num_ranks) {
  const std::string prefix(name);
  if (placement.num_ranks != num_ranks) {
    throw invalid(prefix + ".num_ranks", placement.num_ranks,
                  "num_ranks of the config, " + std::to_string(num_ranks));
  }
  if (placement.num_rows < rows || placement.num_rows > kMaxRows) {
    throw invalid(prefix + ".num_rows", placement.num_rows,
                  std::to_string(rows) + " (rows of the mask) to " + std::to_string(kMaxRows));
  }
  if (placement.chunk_size < 1) throw invalid(prefix + ".chunk_size", placement.chunk_size, ">= 1");
  const auto num_chunks =
      static_cast<std::size_t>(ceil_div<std::int64_t>(placement.num_rows, placement.chunk_size));
  if (placement.chunk_rank.size() != num_chunks) {
    throw invalid(prefix + ".chunk_rank.size()", placement.chunk_rank.size(),
                  "number of chunks, " + std::to_string(num_chunks));
  }
  const Placement derived = placement_from_chunks(placement.num_rows, placement.chunk_size,
                                                  placement.num_ranks, placement.chunk_rank);
  if (derived != placement) {
    throw InvalidArgument(prefix + ".rank_chunks contradicts " + prefix +
                          ".chunk_rank; allowed: tables as placement_from_chunks fills them");
  }
}

}  // namespace magi::planner
