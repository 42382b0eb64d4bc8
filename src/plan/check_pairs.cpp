// SPDX-License-Identifier: Apache-2.0
#include "plan/check_pairs.hpp"

#include <algorithm>
#include <optional>
#include <tuple>

#include "plan/fingerprint.hpp"

namespace magi::planner {
namespace {

/// Masks of at most this many pairs are compared pair by pair.
constexpr std::int64_t kMaxDensePairs = std::int64_t{1} << 24;

/// The segment that starts with a copy of the own rows: overlap degree 0 (see TokenSpace).
bool is_combined(const Plan& plan, const RankPlan& rank) {
  return plan.num_waves == 1 && rank.k.segments.size() > 1 && rank.k.segments[1].num_rows > 0;
}

/// Sorts ranges and joins those that touch; a doubled row is reported by the caller's row count.
std::vector<Range> united(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  std::vector<Range> joined;
  for (const Range& range : ranges) {
    if (!joined.empty() && range.begin <= joined.back().end) {
      joined.back().end = std::max(joined.back().end, range.end);
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

/// `ranges` without the chunks of `rank`; both ascending.
std::vector<Range> without_own(const std::vector<Range>& ranges, const Placement& placement,
                               std::int32_t rank) {
  std::vector<Range> left;
  for (const Range& range : ranges) {
    std::int32_t begin = range.begin;
    while (begin < range.end) {
      const std::int32_t chunk = begin / placement.chunk_size;
      const std::int64_t next = (std::int64_t{chunk} + 1) * placement.chunk_size;
      const auto end = static_cast<std::int32_t>(std::min<std::int64_t>(next, range.end));
      if (placement.chunk_rank[static_cast<std::size_t>(chunk)] != rank) {
        left.push_back({begin, end});
      }
      begin = end;
    }
  }
  return united(std::move(left));
}

/// Keys that each rank's queries see, row by row.
std::vector<std::vector<Range>> seen_keys(const Plan& plan) {
  std::vector<std::vector<Range>> seen(plan.ranks.size());
  for (const BandSlice& slice : plan.mask.slices) {
    std::vector<Range>* last = nullptr;
    for (std::int32_t q = slice.q0; q < slice.q1; ++q) {
      const Range keys = visible_keys(slice, q);
      if (keys.empty()) continue;
      const auto chunk = static_cast<std::size_t>(q / plan.placement_q.chunk_size);
      auto& list = seen[static_cast<std::size_t>(plan.placement_q.chunk_rank[chunk])];
      if (&list == last && keys.begin <= list.back().end && keys.begin >= list.back().begin) {
        list.back().end = std::max(list.back().end, keys.end);
      } else {
        list.push_back(keys);
      }
      last = &list;
    }
  }
  return seen;
}

/// Key ranges that reach a rank, in order of segments and rows. Reports rows of a segment that
/// nothing fills, or that two transfers fill.
std::vector<Range> received_keys(const Plan& plan, std::int32_t rank, Problems& problems) {
  const RankPlan& own = plan.ranks[static_cast<std::size_t>(rank)];
  const auto segments = map_segments(plan, rank);
  std::vector<Range> received;
  for (std::size_t s = 1; s < segments.size(); ++s) {
    std::int32_t filled = 0;
    const std::int32_t own_rows = is_combined(plan, own) ? own.k.segments[0].num_rows : 0;
    for (const MappedRows& rows : segments[s]) {
      if (rows.local != filled) {
        problems.add("rank ", rank, ": row ", std::min(filled, rows.local), " of key segment ", s,
                     " is filled ", rows.local > filled ? "by nothing" : "twice");
      }
      filled = std::max(filled, rows.local + rows.num_rows);
      if (rows.local >= own_rows) received.push_back({rows.global, rows.global + rows.num_rows});
    }
    if (filled != own.k.segments[s].num_rows) {
      problems.add("rank ", rank, ": rows from ", filled, " on of key segment ", s,
                   " are filled by nothing");
    }
  }
  return received;
}

std::vector<const MappedRows*> overlapping(const std::vector<MappedRows>& rows, Range range) {
  auto it = std::partition_point(rows.begin(), rows.end(), [&](const MappedRows& r) {
    return r.local + r.num_rows <= range.begin;
  });
  std::vector<const MappedRows*> found;
  for (; it != rows.end() && it->local < range.end; ++it) found.push_back(&*it);
  return found;
}

/// Calls use(piece) for the parts of a rank's slice in global coordinates.
template <typename Use>
void for_global_pieces(const BandSlice& slice, const std::vector<MappedRows>& queries,
                       const std::vector<MappedRows>& keys, Use&& use) {
  for (const MappedRows* q : overlapping(queries, {slice.q0, slice.q1})) {
    const BandSlice rows = shrink(cut_q(slice, {q->local, q->local + q->num_rows}));
    if (rows.q0 == rows.q1) continue;
    for (const MappedRows* k : overlapping(keys, {rows.k0, rows.k1})) {
      const BandSlice piece = shrink(cut_k(rows, {k->local, k->local + k->num_rows}));
      if (piece.q0 != piece.q1) {
        use(shift(piece, q->global - q->local, k->global - k->local));
      }
    }
  }
}

/// Calls use(piece) for everything that the plan attends to, each slice once (waves by heads share
/// theirs, which check_plan verifies).
template <typename Use>
void for_all_pieces(const Plan& plan, Use&& use) {
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    const auto rank = static_cast<std::int32_t>(r);
    const RankPlan& own = plan.ranks[r];
    const auto queries = map_own_rows(plan.placement_q, rank, {0, own.q.segments[0].num_rows}, 0);
    const auto keys = map_segments(plan, rank);
    std::vector<bool> is_done(keys.size(), false);
    for (const Wave& wave : own.waves) {
      const auto segment = static_cast<std::size_t>(wave.k_segment);
      if (is_done[segment]) continue;
      is_done[segment] = true;
      for (std::int32_t s = wave.slices.begin; s < wave.slices.end; ++s) {
        for_global_pieces(own.slices[static_cast<std::size_t>(s)], queries, keys[segment], use);
      }
    }
  }
}

void compare_dense(const Plan& plan, Problems& problems) {
  const auto rows_k = static_cast<std::size_t>(plan.mask.rows_k);
  const std::vector<std::uint16_t> expected = expand(plan.mask);
  std::vector<std::uint16_t> counted(expected.size(), 0);
  bool is_outside = false;
  for_all_pieces(plan, [&](const BandSlice& piece) {
    for (std::int32_t q = piece.q0; q < piece.q1; ++q) {
      const Range keys = visible_keys(piece, q);
      if (q >= plan.mask.rows_q || keys.end > plan.mask.rows_k) {
        is_outside = is_outside || !keys.empty();
        continue;
      }
      for (std::int32_t k = keys.begin; k < keys.end; ++k) {
        ++counted[static_cast<std::size_t>(q) * rows_k + static_cast<std::size_t>(k)];
      }
    }
  });
  if (is_outside) problems.add("padding rows are attended to");
  const auto [want, have] = std::mismatch(expected.begin(), expected.end(), counted.begin());
  if (want == expected.end()) return;
  const auto index = static_cast<std::size_t>(want - expected.begin());
  problems.add("query ", index / rows_k, " attends to key ", index % rows_k, " ", *have,
               " times, the mask has it ", *want, " times");
}

void compare_fingerprints(const Plan& plan, Problems& problems) {
  std::uint64_t expected = 0;
  for (const BandSlice& slice : plan.mask.slices) {
    expected = add_fingerprints(expected, pair_fingerprint(slice));
  }
  std::uint64_t counted = 0;
  for_all_pieces(plan, [&](const BandSlice& piece) {
    counted = add_fingerprints(counted, pair_fingerprint(piece));
  });
  if (counted != expected) {
    problems.add("the pairs attended to are not those of the mask (fingerprints differ)");
  }
}

}  // namespace

std::vector<MappedRows> map_own_rows(const Placement& placement, std::int32_t rank, Range local,
                                     std::int32_t to) {
  std::vector<MappedRows> mapped;
  const std::int32_t size = placement.chunk_size;
  const auto first = static_cast<std::size_t>(placement.rank_begin[static_cast<std::size_t>(rank)]);
  for (std::int32_t row = local.begin; row < local.end;) {
    // Only the last chunk of all may be short, so a rank's chunks start at multiples of the size.
    const std::int32_t inside = row % size;
    const std::int32_t chunk = placement.rank_chunks[first + static_cast<std::size_t>(row / size)];
    const std::int32_t rows = std::min(size - inside, local.end - row);
    const MappedRows next{to + row - local.begin, chunk * size + inside, rows};
    if (!mapped.empty() && mapped.back().global + mapped.back().num_rows == next.global) {
      mapped.back().num_rows += rows;
    } else {
      mapped.push_back(next);
    }
    row += rows;
  }
  return mapped;
}

std::vector<std::vector<MappedRows>> map_segments(const Plan& plan, std::int32_t rank) {
  const RankPlan& own = plan.ranks[static_cast<std::size_t>(rank)];
  std::vector<std::vector<MappedRows>> segments(own.k.segments.size());
  const Range own_rows{0, own.k.segments[0].num_rows};
  segments[0] = map_own_rows(plan.placement_k, rank, own_rows, 0);
  if (is_combined(plan, own)) segments[1] = segments[0];
  for (const Transfer& t : plan.transfers) {
    if (t.dst != rank) continue;
    const auto rows =
        map_own_rows(plan.placement_k, t.src, {t.src_row, t.src_row + t.num_rows}, t.dst_row);
    auto& segment = segments[static_cast<std::size_t>(t.dst_segment)];
    segment.insert(segment.end(), rows.begin(), rows.end());
  }
  for (auto& rows : segments) {
    std::stable_sort(rows.begin(), rows.end(),
                     [](const MappedRows& a, const MappedRows& b) { return a.local < b.local; });
  }
  return segments;
}

void check_received(const Plan& plan, Problems& problems) {
  const auto seen = seen_keys(plan);
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    const auto rank = static_cast<std::int32_t>(r);
    const std::vector<Range> needed = without_own(united(seen[r]), plan.placement_k, rank);
    const std::vector<Range> received = received_keys(plan, rank, problems);
    std::int64_t num_received = 0;
    std::int32_t last = -1;
    for (const Range& range : received) {
      num_received += range.size();
      if (range.begin < last) {
        problems.add("rank ", rank, ": key row ", range.begin, " arrives after row ", last - 1);
      }
      last = range.end;
    }
    std::int64_t num_needed = 0;
    for (const Range& range : needed) num_needed += range.size();
    if (united(received) != needed || num_received != num_needed) {
      problems.add("rank ", rank, " receives ", num_received, " key rows and needs ", num_needed,
                   ", or others");
    }
  }
}

void check_pairs(const Plan& plan, Problems& problems) {
  const std::int64_t pairs = std::int64_t{plan.mask.rows_q} * plan.mask.rows_k;
  if (pairs <= kMaxDensePairs) {
    compare_dense(plan, problems);
  } else {
    compare_fingerprints(plan, problems);
  }
}

}  // namespace magi::planner
