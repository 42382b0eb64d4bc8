// SPDX-License-Identifier: Apache-2.0
#include "plan/check/pairs.hpp"

#include <algorithm>
#include <span>
#include <vector>

#include "plan/check/pair_edges.hpp"

namespace magi::planner {
namespace {

/// The runs that hold some of the local rows `range`.
std::span<const MappedRows> overlapping(std::span<const MappedRows> rows, Range range) {
  const auto begin = std::partition_point(rows.begin(), rows.end(), [&](const MappedRows& r) {
    return r.local + r.num_rows <= range.begin;
  });
  const auto end = std::partition_point(begin, rows.end(),
                                        [&](const MappedRows& r) { return r.local < range.end; });
  return {begin, end};
}

/// Calls use(piece) for the parts of a rank's slice in global coordinates.
template <typename Use>
void for_global_pieces(const BandSlice& slice, std::span<const MappedRows> queries,
                       std::span<const MappedRows> keys, Use&& use) {
  for (const MappedRows& q : overlapping(queries, {slice.q0, slice.q1})) {
    const BandSlice rows = shrink(cut_q(slice, {q.local, q.local + q.num_rows}));
    if (rows.q0 == rows.q1) continue;
    for (const MappedRows& k : overlapping(keys, {rows.k0, rows.k1})) {
      const BandSlice piece = shrink(cut_k(rows, {k.local, k.local + k.num_rows}));
      if (piece.q0 != piece.q1) {
        use(shift(piece, q.global - q.local, k.global - k.local));
      }
    }
  }
}

/// Calls use(piece, attend) for what one rank attends to, in global coordinates, each slice once
/// (attends that differ in their heads share theirs, which check_attend_slices verifies).
template <typename Use>
void for_pieces_of(const Plan& plan, const RowMaps& rows, std::size_t rank, Use&& use) {
  const RankPlan& own = plan.ranks[rank];
  std::vector<bool> is_done(own.slices.size(), false);
  for (std::size_t a = 0; a < own.attends.size(); ++a) {
    const Attend& attend = own.attends[a];
    const auto begin = static_cast<std::size_t>(attend.slices.begin);
    if (attend.slices.empty() || is_done[begin]) continue;
    is_done[begin] = true;
    for (std::size_t s = begin; s < static_cast<std::size_t>(attend.slices.end); ++s) {
      for_global_pieces(own.slices[s], rows.q.of(rank, attend.q_segment),
                        rows.k.of(rank, attend.k_segment),
                        [&](const BandSlice& piece) { use(piece, a); });
    }
  }
}

/// The position of an attention call in the forward of its rank.
std::size_t step_of(const RankPlan& rank, std::size_t attend) {
  const auto found = std::ranges::find_if(rank.forward, [&](const Step& step) {
    return step.kind == StepKind::Attend && step.index == static_cast<std::int32_t>(attend);
  });
  return static_cast<std::size_t>(found - rank.forward.begin());
}

/// Keys that a step, or the mask, gives to one query row.
struct SeenKeys {
  Range keys;
  int times = 1;  ///< -1: the mask
  std::size_t rank = 0;
  std::size_t attend = 0;
};

std::vector<SeenKeys> keys_of_row(const Plan& plan, const RowMaps& rows, std::int32_t row) {
  std::vector<SeenKeys> seen;
  for (const BandSlice& slice : plan.mask.slices) {
    const Range keys = visible_keys(slice, row);
    if (!keys.empty()) seen.push_back({.keys = keys, .times = -1});
  }
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    for_pieces_of(plan, rows, r, [&](const BandSlice& piece, std::size_t attend) {
      const Range keys = visible_keys(piece, row);
      if (!keys.empty()) seen.push_back({.keys = keys, .rank = r, .attend = attend});
    });
  }
  return seen;
}

/// Names the first keys of a row that are attended to another number of times than the mask says,
/// and the last step that does.
void explain_row(const Plan& plan, const RowMaps& rows, std::int32_t row, Problems& problems) {
  const std::vector<SeenKeys> seen = keys_of_row(plan, rows, row);
  std::vector<std::int32_t> bounds;
  for (const SeenKeys& part : seen) {
    bounds.push_back(part.keys.begin);
    bounds.push_back(part.keys.end);
  }
  std::ranges::sort(bounds);
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
    std::int64_t wanted = 0;
    std::int64_t attended = 0;
    const SeenKeys* last = nullptr;
    for (const SeenKeys& part : seen) {
      if (part.keys.begin > bounds[i] || part.keys.end <= bounds[i]) continue;
      ++(part.times < 0 ? wanted : attended);
      if (part.times > 0) last = &part;
    }
    if (wanted == attended) continue;
    const auto next = std::ranges::upper_bound(bounds, bounds[i]);
    if (last != nullptr) {
      const std::size_t step = step_of(plan.ranks[last->rank], last->attend);
      problems.add("rank ", last->rank, ", forward step ", step, ": query row ", row,
                   " attends to key rows ", bounds[i], " to ", *next - 1, ", in all ", attended,
                   " times, the mask has them ", wanted, " times");
    } else {
      const Placement& placement = plan.placement_q;
      const auto chunk = static_cast<std::size_t>(row / placement.chunk_size);
      problems.add("rank ", placement.chunk_rank[chunk], ": no step of any rank attends from query",
                   " row ", row, " to key rows ", bounds[i], " to ", *next - 1,
                   ", the mask has them ", wanted, " times");
    }
    return;
  }
}

}  // namespace

void check_pairs(const Plan& plan, const RowMaps& rows, Problems& problems) {
  std::size_t num_slices = plan.mask.slices.size();
  for (const RankPlan& rank : plan.ranks) num_slices += rank.slices.size();
  PairEdges edges(num_slices);
  for (const BandSlice& slice : plan.mask.slices) edges.add(slice, -1);
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    for_pieces_of(plan, rows, r, [&](const BandSlice& piece, std::size_t) { edges.add(piece, 1); });
  }
  if (const auto row = edges.differing_row()) explain_row(plan, rows, *row, problems);
}

}  // namespace magi::planner
