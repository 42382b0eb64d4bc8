// SPDX-License-Identifier: Apache-2.0
#include "plan/check_pairs.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <tuple>

#include "plan/fingerprint.hpp"

namespace magi::planner {
namespace {

/// Masks of at most this many pairs are compared pair by pair.
constexpr std::int64_t kMaxDensePairs = std::int64_t{1} << 24;

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

/// Calls use(piece) for what one rank attends to, in global coordinates, each slice once (attends
/// that differ in their heads share theirs, which check_plan verifies).
template <typename Use>
void for_pieces_of(const Plan& plan, std::int32_t rank, Use&& use) {
  const RankPlan& own = plan.ranks[static_cast<std::size_t>(rank)];
  const auto queries = map_segments(plan, rank, Space::Queries);
  const auto keys = map_segments(plan, rank, Space::Keys);
  std::set<std::array<std::int32_t, 4>> done;
  for (const Attend& attend : own.attends) {
    const Range slices = attend.slices;
    if (!done.insert({attend.q_segment, attend.k_segment, slices.begin, slices.end}).second) {
      continue;
    }
    for (std::int32_t s = slices.begin; s < slices.end; ++s) {
      for_global_pieces(own.slices[static_cast<std::size_t>(s)],
                        queries[static_cast<std::size_t>(attend.q_segment)],
                        keys[static_cast<std::size_t>(attend.k_segment)], use);
    }
  }
}

template <typename Use>
void for_all_pieces(const Plan& plan, Use&& use) {
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    for_pieces_of(plan, static_cast<std::int32_t>(r), use);
  }
}

/// Rows of a space that a rank's attends read, row by row.
std::vector<Range> read_rows(const Plan& plan, std::int32_t rank, Space space) {
  std::vector<Range> rows;
  const auto append = [&](Range next) {
    if (!rows.empty() && next.begin <= rows.back().end && next.begin >= rows.back().begin) {
      rows.back().end = std::max(rows.back().end, next.end);
    } else {
      rows.push_back(next);
    }
  };
  for_pieces_of(plan, rank, [&](const BandSlice& piece) {
    for (std::int32_t q = piece.q0; q < piece.q1; ++q) {
      const Range keys = visible_keys(piece, q);
      if (!keys.empty()) append(space == Space::Keys ? keys : Range{q, q + 1});
    }
  });
  return united(std::move(rows));
}

/// Global rows that reach a rank from others, in order of segments and rows. Reports rows of a
/// segment that nothing fills, or that two transfers fill.
std::vector<Range> received_rows(const Plan& plan, std::int32_t rank, Space space,
                                 Problems& problems) {
  const auto& segments = space_of(plan.ranks[static_cast<std::size_t>(rank)], space).segments;
  const auto mapped = map_segments(plan, rank, space);
  const char* name = space == Space::Keys ? " of key segment " : " of query segment ";
  std::vector<Range> received;
  for (std::size_t s = 1; s < mapped.size(); ++s) {
    std::int32_t filled = 0;
    for (const MappedRows& rows : mapped[s]) {
      if (rows.local != filled) {
        problems.add("rank ", rank, ": row ", std::min(filled, rows.local), name, s, " is filled ",
                     rows.local > filled ? "by nothing" : "twice");
      }
      filled = std::max(filled, rows.local + rows.num_rows);
      if (rows.owner != rank) received.push_back({rows.global, rows.global + rows.num_rows});
    }
    if (filled != segments[s].num_rows) {
      problems.add("rank ", rank, ": rows from ", filled, " on", name, s, " are filled by nothing");
    }
  }
  return received;
}

void check_received(const Plan& plan, std::int32_t rank, Space space, Problems& problems) {
  // Without a segment to receive in there is nothing to compare: pairs tell what is missing.
  if (space_of(plan.ranks[static_cast<std::size_t>(rank)], space).segments.size() == 1) return;
  const char* name = space == Space::Keys ? "key" : "query";
  const Placement& placement = space == Space::Keys ? plan.placement_k : plan.placement_q;
  const std::vector<Range> needed = without_own(read_rows(plan, rank, space), placement, rank);
  const std::vector<Range> received = received_rows(plan, rank, space, problems);
  std::int64_t num_received = 0;
  std::int32_t last = -1;
  for (const Range& range : received) {
    num_received += range.size();
    if (range.begin < last) {
      problems.add("rank ", rank, ": ", name, " row ", range.begin, " arrives after row ",
                   last - 1);
    }
    last = range.end;
  }
  std::int64_t num_needed = 0;
  for (const Range& range : needed) num_needed += range.size();
  if (united(received) != needed || num_received != num_needed) {
    problems.add("rank ", rank, " receives ", num_received, " ", name, " rows and needs ",
                 num_needed, ", or others");
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
    const MappedRows next{to + row - local.begin, chunk * size + inside, rows, rank};
    if (!mapped.empty() && mapped.back().global + mapped.back().num_rows == next.global) {
      mapped.back().num_rows += rows;
    } else {
      mapped.push_back(next);
    }
    row += rows;
  }
  return mapped;
}

std::vector<std::vector<MappedRows>> map_segments(const Plan& plan, std::int32_t rank,
                                                  Space space) {
  const auto& own = space_of(plan.ranks[static_cast<std::size_t>(rank)], space).segments;
  const Placement& placement = space == Space::Keys ? plan.placement_k : plan.placement_q;
  std::vector<std::vector<MappedRows>> segments(own.size());
  segments[0] = map_own_rows(placement, rank, {0, own[0].num_rows}, 0);
  for (const Transfer& t : plan.transfers) {
    if (t.dst != rank || t.space != space) continue;
    const auto rows =
        map_own_rows(placement, t.src, {t.src_row, t.src_row + t.num_rows}, t.dst_row);
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
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    for (const Space space : {Space::Keys, Space::Queries}) {
      check_received(plan, static_cast<std::int32_t>(r), space, problems);
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
