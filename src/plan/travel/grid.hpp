// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "magi/mask.hpp"
#include "plan/tables/layout.hpp"

namespace magi::planner {

/// Neighbouring rows of one owner: the grain in which work is given to ranks.
struct WorkPart {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  std::int32_t owner = 0;

  std::int64_t rows() const { return end - begin; }
};

/// The visible pairs of a query part and a key part.
struct WorkTile {
  std::int32_t q = 0;
  std::int32_t k = 0;
  std::int64_t area = 0;
  Range cuts;  ///< into WorkGrid::cuts
};

/// A mask cut at the borders of owners, and inside long runs of one owner, in queries and in keys.
struct WorkGrid {
  std::vector<WorkPart> q;
  std::vector<WorkPart> k;
  std::vector<BandSlice> cuts;             ///< shrunk, in global rows, grouped by tile
  std::vector<WorkTile> tiles;             ///< those with pairs, by (q, k)
  std::vector<std::int32_t> row_begin;     ///< [q.size() + 1] into tiles
  std::vector<std::int32_t> column_begin;  ///< [k.size() + 1] into column_tiles
  std::vector<std::int32_t> column_tiles;  ///< tiles by (k, q)

  std::span<const BandSlice> cuts_of(const WorkTile& tile) const {
    return {cuts.data() + tile.cuts.begin, static_cast<std::size_t>(tile.cuts.size())};
  }
  std::int64_t total_area() const;
};

/// Parts hold at most 1.5 x part_rows rows (or 2). Time is linear in the cuts but for a sort.
WorkGrid make_work_grid(const Mask& mask, const Layout& layout_q, const Layout& layout_k,
                        std::int32_t part_rows);

/// The part that holds a row, which one of them must.
std::int32_t part_of(const std::vector<WorkPart>& parts, std::int32_t row);

}  // namespace magi::planner
