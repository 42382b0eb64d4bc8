// SPDX-License-Identifier: Apache-2.0
#include "plan/travel/grid.hpp"

#include <algorithm>
#include <tuple>

namespace magi::planner {
namespace {

/// Runs of owners, halved until none is longer than 1.5 x part_rows, or has a row or two.
std::vector<WorkPart> make_parts(const Layout& layout, std::int32_t part_rows) {
  std::vector<WorkPart> parts;
  parts.reserve(layout.runs.size());
  for (const RowRun& run : layout.runs) {
    const std::int64_t rows = run.end - run.begin;
    std::int64_t count = 1;
    while (2 * rows > 3 * count * part_rows && 2 * count <= rows) count *= 2;
    for (std::int64_t i = 0; i < count; ++i) {
      parts.push_back({static_cast<std::int32_t>(run.begin + rows * i / count),
                       static_cast<std::int32_t>(run.begin + rows * (i + 1) / count), run.rank});
    }
  }
  return parts;
}

struct Cut {
  std::int32_t q = 0;
  std::int32_t k = 0;
  BandSlice slice;
};

/// Every slice against the parts that it meets.
std::vector<Cut> cut_mask(const Mask& mask, const WorkGrid& grid) {
  std::vector<Cut> cuts;
  for (const BandSlice& slice : mask.slices) {
    if (slice.q0 >= slice.q1) continue;
    for (auto i = static_cast<std::size_t>(part_of(grid.q, slice.q0));
         i < grid.q.size() && grid.q[i].begin < slice.q1; ++i) {
      const BandSlice rows = shrink(cut_q(slice, {grid.q[i].begin, grid.q[i].end}));
      if (rows.q0 == rows.q1) continue;
      for (auto j = static_cast<std::size_t>(part_of(grid.k, rows.k0));
           j < grid.k.size() && grid.k[j].begin < rows.k1; ++j) {
        const BandSlice cut = shrink(cut_k(rows, {grid.k[j].begin, grid.k[j].end}));
        if (cut.q0 == cut.q1) continue;
        cuts.push_back({static_cast<std::int32_t>(i), static_cast<std::int32_t>(j), cut});
      }
    }
  }
  std::ranges::stable_sort(cuts, {}, [](const Cut& cut) { return std::tie(cut.q, cut.k); });
  return cuts;
}

void index_tiles(WorkGrid& grid) {
  grid.row_begin.assign(grid.q.size() + 1, 0);
  grid.column_begin.assign(grid.k.size() + 1, 0);
  for (const WorkTile& tile : grid.tiles) {
    ++grid.row_begin[static_cast<std::size_t>(tile.q) + 1];
    ++grid.column_begin[static_cast<std::size_t>(tile.k) + 1];
  }
  for (std::size_t i = 0; i < grid.q.size(); ++i) grid.row_begin[i + 1] += grid.row_begin[i];
  for (std::size_t i = 0; i < grid.k.size(); ++i) grid.column_begin[i + 1] += grid.column_begin[i];
  std::vector<std::int32_t> next(grid.column_begin.begin(), grid.column_begin.end() - 1);
  grid.column_tiles.resize(grid.tiles.size());
  for (std::size_t t = 0; t < grid.tiles.size(); ++t) {
    std::int32_t& slot = next[static_cast<std::size_t>(grid.tiles[t].k)];
    grid.column_tiles[static_cast<std::size_t>(slot++)] = static_cast<std::int32_t>(t);
  }
}

}  // namespace

std::int32_t part_of(const std::vector<WorkPart>& parts, std::int32_t row) {
  const auto part = std::ranges::upper_bound(parts, row, {}, &WorkPart::end);
  return static_cast<std::int32_t>(part - parts.begin());
}

std::int64_t WorkGrid::total_area() const {
  std::int64_t total = 0;
  for (const WorkTile& tile : tiles) total += tile.area;
  return total;
}

WorkGrid make_work_grid(const Mask& mask, const Layout& layout_q, const Layout& layout_k,
                        std::int32_t part_rows) {
  WorkGrid grid;
  grid.q = make_parts(layout_q, part_rows);
  grid.k = make_parts(layout_k, part_rows);
  for (const Cut& cut : cut_mask(mask, grid)) {
    const bool is_new =
        grid.tiles.empty() || grid.tiles.back().q != cut.q || grid.tiles.back().k != cut.k;
    const auto index = static_cast<std::int32_t>(grid.cuts.size());
    if (is_new) grid.tiles.push_back({.q = cut.q, .k = cut.k, .cuts = {index, index}});
    grid.tiles.back().area += area(cut.slice);
    ++grid.tiles.back().cuts.end;
    grid.cuts.push_back(cut.slice);
  }
  index_tiles(grid);
  return grid;
}

}  // namespace magi::planner
