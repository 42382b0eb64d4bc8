// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "magi/mask.hpp"

namespace magi::cpu {

/// The meaning of one slice for one tile of rows: rows `rows` see columns within `cols`.
struct TileRecord {
  std::int32_t slice = 0;
  Range rows;
  Range cols;
};

/// The records of every tile of `tile_rows` rows its records, sorted by first column, then by
/// slice. Memory and time linear in records, no matter how many columns a slice spans.
struct TileRecords {
  std::vector<std::int64_t> offsets;  ///< [num_tiles + 1] into records
  std::vector<TileRecord> records;

  std::span<const TileRecord> of_tile(std::int64_t tile) const {
    const auto i = static_cast<std::size_t>(tile);
    return std::span(records).subspan(static_cast<std::size_t>(offsets[i]),
                                      static_cast<std::size_t>(offsets[i + 1] - offsets[i]));
  }
  /// Records of the tile that has most.
  std::size_t longest() const {
    std::int64_t most = 0;
    for (std::size_t t = 1; t < offsets.size(); ++t) {
      most = std::max(most, offsets[t] - offsets[t - 1]);
    }
    return static_cast<std::size_t>(most);
  }
};

/// `slices` have the tiled rows in q. Empty slices leave no record.
TileRecords build_tile_records(std::span<const BandSlice> slices, std::int32_t num_rows,
                               std::int32_t tile_rows);

/// A block of columns and the records of one tile that reach it.
struct ColumnBlock {
  Range cols;  ///< on the grid of block_cols
  Range used;  ///< the part of it that the records need
  std::span<const TileRecord> records;
};

/// Calls visit(ColumnBlock) for every block of columns that `records` (sorted by first column)
/// reach, in order, and for no other. `active` is scratch of its caller.
template <typename Visit>
void for_each_column_block(std::span<const TileRecord> records, std::int32_t block_cols,
                           std::vector<TileRecord>& active, const Visit& visit) {
  active.clear();
  std::size_t next = 0;
  std::int32_t begin = 0;
  while (next < records.size() || !active.empty()) {
    if (active.empty()) begin = records[next].cols.begin / block_cols * block_cols;
    const std::int32_t end = begin + block_cols;
    while (next < records.size() && records[next].cols.begin < end) {
      active.push_back(records[next++]);
    }
    Range used{end, begin};
    for (const TileRecord& record : active) {
      used.begin = std::min(used.begin, std::max(record.cols.begin, begin));
      used.end = std::max(used.end, std::min(record.cols.end, end));
    }
    visit(ColumnBlock{{begin, end}, used, active});
    std::erase_if(active, [end](const TileRecord& record) { return record.cols.end <= end; });
    begin = end;
  }
}

}  // namespace magi::cpu
