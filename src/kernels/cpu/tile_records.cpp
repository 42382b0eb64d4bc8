// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/tile_records.hpp"

#include <tuple>

#include "base/math.hpp"

namespace magi::cpu {
namespace {

/// Columns that rows [rows.begin, rows.end) of the slice see, as one range; both ends of a row's
/// interval never move left from row to row.
Range columns_of(const BandSlice& slice, Range rows) {
  const std::int64_t first = std::int64_t{rows.begin} + slice.d_min;
  const std::int64_t last = std::int64_t{rows.end} + slice.d_max;
  return {static_cast<std::int32_t>(std::clamp<std::int64_t>(first, slice.k0, slice.k1)),
          static_cast<std::int32_t>(std::clamp<std::int64_t>(last, slice.k0, slice.k1))};
}

template <typename Emit>
void for_each_tile(std::span<const BandSlice> slices, std::int32_t tile_rows, const Emit& emit) {
  for (std::size_t s = 0; s < slices.size(); ++s) {
    const BandSlice& slice = slices[s];
    if (slice.q0 >= slice.q1 || slice.k0 >= slice.k1 || slice.d_min > slice.d_max) continue;
    for (std::int32_t tile = slice.q0 / tile_rows; tile <= (slice.q1 - 1) / tile_rows; ++tile) {
      const Range rows{std::max(slice.q0, tile * tile_rows),
                       std::min(slice.q1, (tile + 1) * tile_rows)};
      const Range cols = columns_of(slice, rows);
      if (!cols.empty()) emit(tile, TileRecord{static_cast<std::int32_t>(s), rows, cols});
    }
  }
}

}  // namespace

TileRecords build_tile_records(std::span<const BandSlice> slices, std::int32_t num_rows,
                               std::int32_t tile_rows) {
  const auto num_tiles = static_cast<std::size_t>(ceil_div(num_rows, tile_rows));
  TileRecords result;
  result.offsets.assign(num_tiles + 1, 0);
  for_each_tile(slices, tile_rows, [&](std::int32_t tile, const TileRecord&) {
    ++result.offsets[static_cast<std::size_t>(tile) + 1];
  });
  for (std::size_t t = 0; t < num_tiles; ++t) result.offsets[t + 1] += result.offsets[t];
  result.records.resize(static_cast<std::size_t>(result.offsets.back()));
  std::vector<std::int64_t> next(result.offsets.begin(), result.offsets.end() - 1);
  for_each_tile(slices, tile_rows, [&](std::int32_t tile, const TileRecord& record) {
    result.records[static_cast<std::size_t>(next[static_cast<std::size_t>(tile)]++)] = record;
  });
  for (std::size_t t = 0; t < num_tiles; ++t) {
    std::sort(result.records.begin() + result.offsets[t],
              result.records.begin() + result.offsets[t + 1],
              [](const TileRecord& a, const TileRecord& b) {
                return std::tie(a.cols.begin, a.slice) < std::tie(b.cols.begin, b.slice);
              });
  }
  return result;
}

}  // namespace magi::cpu
