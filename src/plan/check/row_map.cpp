// SPDX-License-Identifier: Apache-2.0
#include "plan/check/row_map.hpp"

#include <algorithm>

#include "plan/check/structure.hpp"

namespace magi::planner {
namespace {

void append(const MappedRows& rows, std::vector<MappedRows>& runs) {
  if (!runs.empty()) {
    MappedRows& last = runs.back();
    if (last.local + last.num_rows == rows.local && last.global + last.num_rows == rows.global &&
        last.is_own == rows.is_own) {
      last.num_rows += rows.num_rows;
      return;
    }
  }
  runs.push_back(rows);
}

/// Appends the rows of a rank's shard from `row` on, which stand at `local` of a segment.
void append_shard_rows(const Placement& placement, std::int32_t rank, std::int32_t row,
                       MappedRows rows, std::vector<MappedRows>& runs) {
  const std::int32_t size = placement.chunk_size;
  const auto first = static_cast<std::size_t>(placement.rank_begin[static_cast<std::size_t>(rank)]);
  // Only the last chunk of all may be short, so a rank's chunks start at multiples of the size.
  auto chunk = first + static_cast<std::size_t>(row / size);
  std::int32_t inside = row % size;
  for (std::int32_t left = rows.num_rows; left > 0; ++chunk, inside = 0) {
    rows.global = placement.rank_chunks[chunk] * size + inside;
    rows.num_rows = std::min(size - inside, left);
    append(rows, runs);
    rows.local += rows.num_rows;
    left -= rows.num_rows;
  }
}

}  // namespace

RowMap::RowMap(const Plan& plan, Space space)
    : num_segments_(space_of(plan.ranks[0], space).segments.size()),
      runs_(plan.ranks.size() * num_segments_) {
  const Placement& placement = space == Space::Keys ? plan.placement_k : plan.placement_q;
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    const std::int32_t rows = space_of(plan.ranks[r], space).segments[0].num_rows;
    append_shard_rows(placement, static_cast<std::int32_t>(r), 0,
                      {.num_rows = rows, .is_own = true}, runs_[r * num_segments_]);
  }
  for (const Transfer& t : plan.transfers) {
    if (t.space != space) continue;
    auto& runs = runs_[static_cast<std::size_t>(t.dst) * num_segments_ +
                       static_cast<std::size_t>(t.dst_segment)];
    append_shard_rows(placement, t.src, t.src_row,
                      {.local = t.dst_row, .num_rows = t.num_rows, .is_own = t.src == t.dst}, runs);
  }
  for (auto& runs : runs_) {
    if (!std::ranges::is_sorted(runs, {}, &MappedRows::local)) {
      std::ranges::stable_sort(runs, {}, &MappedRows::local);
    }
  }
}

}  // namespace magi::planner
