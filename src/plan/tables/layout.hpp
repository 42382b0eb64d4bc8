// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "magi/placement.hpp"

namespace magi::planner {

/// Rows that are adjacent both in global order and in their rank's local order, as long as
/// possible.
struct RowRun {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  std::int32_t rank = 0;
  std::int32_t local = 0;  ///< local row of `begin`
};

/// A placement as runs: what the planner sweeps over.
struct Layout {
  std::vector<RowRun> runs;             ///< ascending; tile [0, num_rows)
  std::vector<std::int32_t> chunk_run;  ///< [num_chunks] run that holds the chunk
  std::vector<std::int32_t> rank_begin;
  std::vector<std::int32_t> rank_runs;  ///< runs of each rank, ascending
  std::vector<std::int32_t> rank_rows;  ///< [num_ranks]
  std::int32_t chunk_size = 0;

  std::int32_t run_of_row(std::int32_t row) const {
    return chunk_run[static_cast<std::size_t>(row / chunk_size)];
  }
  std::span<const std::int32_t> runs_of(std::int32_t rank) const {
    const auto r = static_cast<std::size_t>(rank);
    const auto begin = static_cast<std::size_t>(rank_begin[r]);
    return {rank_runs.data() + begin, static_cast<std::size_t>(rank_begin[r + 1]) - begin};
  }
};

/// O(chunks). The placement must be sound (see validate_placement).
Layout make_layout(const Placement& placement);

/// Throws InvalidArgument naming `name` where a placement's tables contradict each other, or it
/// does not hold `rows` rows on `num_ranks` ranks.
void validate_placement(const Placement& placement, const char* name, std::int32_t rows,
                        std::int32_t num_ranks);

}  // namespace magi::planner
