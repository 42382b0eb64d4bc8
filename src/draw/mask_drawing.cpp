// SPDX-License-Identifier: Apache-2.0
#include "draw/mask_drawing.hpp"

#include <algorithm>
#include <array>

#include "base/check.hpp"
#include "draw/numbers.hpp"
#include "draw/svg.hpp"

namespace magi::draw {
namespace {

/// Consecutive query rows of one rank.
struct Run {
  Range rows;
  std::int32_t rank = 0;
};

std::vector<Run> runs_of(const Placement& placement) {
  std::vector<Run> runs;
  for (std::int32_t chunk = 0; chunk < placement.num_chunks(); ++chunk) {
    const Range rows = placement.chunk_rows(chunk);
    const std::int32_t rank = placement.chunk_rank[static_cast<std::size_t>(chunk)];
    if (!runs.empty() && runs.back().rank == rank) {
      runs.back().rows.end = rows.end;
    } else {
      runs.push_back({.rows = rows, .rank = rank});
    }
  }
  return runs;
}

/// Groups by rank, or without a placement by type of slice.
std::vector<Group> empty_groups(const Placement* placement) {
  constexpr std::array<const char*, 4> kTypes = {"full", "causal", "inverse causal",
                                                 "bidirectional"};
  const std::int32_t count = placement == nullptr ? 4 : placement->num_ranks;
  std::vector<Group> groups;
  for (std::int32_t i = 0; i < count; ++i) {
    groups.push_back(
        {.name = placement == nullptr ? kTypes[static_cast<std::size_t>(i)] : std::to_string(i),
         .colour = rank_colour(i, count)});
  }
  return groups;
}

/// Index of a type as in MaskType: which diagonals bind.
std::size_t type_of(const BandSlice& slice) {
  const BandSlice tight = shrink(slice);
  return (tight.d_max < kBandInfinity ? 1u : 0u) + (tight.d_min > -kBandInfinity ? 2u : 0u);
}

Range checked(const char* name, const std::optional<Range>& range, Range all) {
  if (!range) return all;
  if (range->begin < 0 || range->empty() || range->end > all.end) {
    throw invalid(name, std::to_string(range->begin) + ":" + std::to_string(range->end),
                  "BEGIN:END with 0 <= BEGIN < END <= " + std::to_string(all.end));
  }
  return *range;
}

Range seen_keys(const Mask& mask, Range rows) {
  Range seen{mask.rows_k, 0};
  for (const BandSlice& slice : mask.slices) {
    const BandSlice part = shrink(cut_q(slice, rows));
    if (part.q0 >= part.q1) continue;
    seen = {std::min(seen.begin, part.k0), std::max(seen.end, part.k1)};
  }
  return seen.empty() ? Range{0, mask.rows_k} : seen;
}

/// "4,096 queries", or "queries 5 to 9 of 4,096".
std::string rows_text(const char* what, Range shown, std::int32_t all) {
  if (shown.size() == all) return grouped(all) + " " + what;
  return std::string(what) + " " + grouped(shown.begin) + " to " + grouped(shown.end) + " of " +
         grouped(all);
}

std::string summary_of(const Mask& mask, const MaskDrawing& drawing, std::int64_t num_slices) {
  std::int64_t pairs = 0;
  for (const Group& group : drawing.groups) pairs += group.pairs;
  const double dense = static_cast<double>(drawing.rows.size()) * drawing.keys.size();
  return rows_text("queries", drawing.rows, mask.rows_q) + ", " +
         rows_text("keys", drawing.keys, mask.rows_k) + ", " + grouped(num_slices) +
         (num_slices == 1 ? " slice, " : " slices, ") + grouped(pairs) + " pairs (" +
         percent_text(static_cast<double>(pairs), dense) + " of dense)";
}

/// The lines to which `part` of a range belongs.
Range lines_of(Range part, Range rows, std::int32_t num_lines) {
  const auto scaled = [&](std::int32_t row) { return std::int64_t{row - rows.begin} * num_lines; };
  const std::int64_t size = rows.size();
  return {static_cast<std::int32_t>(scaled(part.begin) / size),
          static_cast<std::int32_t>((scaled(part.end) + size - 1) / size)};
}

}  // namespace

MaskDrawing mask_drawing(const Mask& mask, const Placement* placement, const MaskPart& part) {
  if (placement != nullptr && placement->num_rows < mask.rows_q) {
    throw invalid("placement rows", placement->num_rows,
                  "the mask's " + std::to_string(mask.rows_q) + " query rows or more");
  }
  MaskDrawing drawing{.groups = empty_groups(placement)};
  drawing.rows = checked("rows", part.rows, {0, mask.rows_q});
  const Range keys{0, mask.rows_k};
  drawing.keys =
      part.rows && !part.keys ? seen_keys(mask, drawing.rows) : checked("keys", part.keys, keys);
  const std::vector<Run> runs =
      placement == nullptr ? std::vector<Run>{{.rows = drawing.rows}} : runs_of(*placement);
  std::int64_t num_slices = 0;
  for (const BandSlice& slice : mask.slices) {
    const BandSlice shown = cut_k(cut_q(slice, drawing.rows), drawing.keys);
    if (area(shown) > 0) ++num_slices;
    auto run = std::partition_point(runs.begin(), runs.end(),
                                    [&](const Run& r) { return r.rows.end <= shown.q0; });
    for (; run != runs.end() && run->rows.begin < shown.q1; ++run) {
      const BandSlice own = cut_q(shown, run->rows);
      const std::int64_t pairs = area(own);
      if (pairs == 0) continue;
      const std::size_t group =
          placement == nullptr ? type_of(slice) : static_cast<std::size_t>(run->rank);
      drawing.groups[group].pairs += pairs;
      drawing.pieces.push_back({.slice = own, .group = group});
    }
  }
  drawing.summary = summary_of(mask, drawing, num_slices);
  return drawing;
}

std::vector<std::int32_t> axis_rows(Range rows, int count) {
  std::vector<std::int32_t> found;
  for (const double row : ticks(rows.end, count, 1.0, rows.begin)) {
    found.push_back(static_cast<std::int32_t>(row));
  }
  found.push_back(rows.end);
  return found;
}

Range share(Range rows, std::int32_t index, std::int32_t num_lines) {
  const std::int64_t size = rows.size();
  const auto at = [&](std::int64_t scaled) {
    return rows.begin + static_cast<std::int32_t>(scaled / num_lines);
  };
  return {at(size * index), at(size * (index + 1) + num_lines - 1)};
}

std::vector<Block> blocks_of(const MaskDrawing& drawing, std::int32_t width, std::int32_t height) {
  std::vector<Block> blocks(static_cast<std::size_t>(width) * static_cast<std::size_t>(height));
  for (const auto& [slice, group] : drawing.pieces) {
    const Range lines = lines_of({slice.q0, slice.q1}, drawing.rows, height);
    for (std::int32_t line = lines.begin; line < lines.end; ++line) {
      const BandSlice own = shrink(cut_q(slice, share(drawing.rows, line, height)));
      if (own.q0 >= own.q1) continue;
      const Range columns = lines_of({own.k0, own.k1}, drawing.keys, width);
      for (std::int32_t column = columns.begin; column < columns.end; ++column) {
        const std::int64_t pairs = area(cut_k(own, share(drawing.keys, column, width)));
        Block& block = blocks[static_cast<std::size_t>(line) * static_cast<std::size_t>(width) +
                              static_cast<std::size_t>(column)];
        block.pairs += pairs;
        if (pairs > block.most) {
          block.most = pairs;
          block.group = group;
        }
      }
    }
  }
  return blocks;
}

}  // namespace magi::draw
