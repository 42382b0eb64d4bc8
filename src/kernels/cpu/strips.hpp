// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/math.hpp"
#include "kernels/cpu/micro_kernel_table.hpp"
#include "kernels/cpu/tile_records.hpp"

namespace magi::cpu {

/// Up to kStripRows neighbouring rows of a tile against one block of columns, in the block's own
/// column numbers.
struct Strip {
  std::int64_t row = 0;  ///< first row in the tile
  std::int32_t num_rows = 0;
  Range cols;    ///< hull of what the rows see
  Range panels;  ///< the same, widened to whole panels
  std::array<Range, kStripRows> visible{};
};

/// The layout of the rows of a tile: row r is token `first_token + r / rows_per_token`.
struct TileRows {
  std::int32_t first_token = 0;
  std::int64_t rows_per_token = 1;
};

inline Strip make_strip(const BandSlice& slice, const TileRows& tile, Range block, std::int64_t row,
                        std::int32_t num_rows) {
  Strip strip{.row = row, .num_rows = num_rows, .cols = {block.end, 0}, .panels = {}};
  for (std::int32_t r = 0; r < num_rows; ++r) {
    const auto token = static_cast<std::int32_t>((row + r) / tile.rows_per_token);
    const Range keys = visible_keys(slice, tile.first_token + token);
    const Range seen{std::max(keys.begin, block.begin) - block.begin,
                     std::min(keys.end, block.end) - block.begin};
    strip.visible[static_cast<std::size_t>(r)] = seen;
    if (seen.empty()) continue;
    strip.cols.begin = std::min(strip.cols.begin, seen.begin);
    strip.cols.end = std::max(strip.cols.end, seen.end);
  }
  return strip;
}

/// Calls visit(Strip) for the strips of every record of the block in which some row sees a column.
template <typename Visit>
void for_each_strip(std::span<const BandSlice> slices, const ColumnBlock& block,
                    const TileRows& tile, std::int32_t panel_cols, const Visit& visit) {
  for (const TileRecord& record : block.records) {
    const BandSlice& slice = slices[static_cast<std::size_t>(record.slice)];
    const std::int64_t end = (record.rows.end - tile.first_token) * tile.rows_per_token;
    std::int64_t row = (record.rows.begin - tile.first_token) * tile.rows_per_token;
    for (; row < end; row += kStripRows) {
      const auto num_rows =
          static_cast<std::int32_t>(std::min<std::int64_t>(kStripRows, end - row));
      Strip strip = make_strip(slice, tile, block.cols, row, num_rows);
      if (strip.cols.empty()) continue;
      strip.panels = {strip.cols.begin / panel_cols * panel_cols,
                      align_up(strip.cols.end, panel_cols)};
      visit(strip);
    }
  }
}

/// sums[r] += weights[r] . values over the strip. Values with a NaN or an infinity somewhere must
/// not meet the zero weight of a row that does not see them, so then each row takes its own
/// columns only.
template <typename Real>
void accumulate_strip(const MicroKernels<Real>& kernels, const Strip& strip,
                      AccumulateArgs<Real> args, bool is_finite) {
  if (is_finite) {
    args.num_rows = strip.num_rows;
    args.col_begin = strip.cols.begin;
    args.col_end = strip.cols.end;
    return kernels.accumulate(args);
  }
  args.num_rows = 1;
  for (std::int32_t r = 0; r < strip.num_rows; ++r) {
    const Range visible = strip.visible[static_cast<std::size_t>(r)];
    if (!visible.empty()) {
      args.col_begin = visible.begin;
      args.col_end = visible.end;
      kernels.accumulate(args);
    }
    args.weights += kBlockCols;
    args.sums += args.dim;
  }
}

}  // namespace magi::cpu
