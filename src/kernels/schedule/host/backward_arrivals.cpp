// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/backward_arrivals.hpp"

#include <algorithm>

#include "kernels/schedule/host/backward_list.hpp"

namespace magi {

std::vector<KeySegment> key_segments(const InFlightKeys& coming, std::int32_t rows_k) {
  std::vector<KeySegment> segments;
  std::int32_t end = 0;
  for (std::size_t i = 0; i < coming.parts.size(); ++i) {
    const Range rows = coming.parts[i].rows;
    if (end < rows.begin) segments.push_back({.row_end = rows.begin});
    segments.push_back({.row_end = rows.end, .part = static_cast<std::int32_t>(i)});
    end = rows.end;
  }
  if (end < rows_k) segments.push_back({.row_end = rows_k});
  return segments;
}

std::uint32_t awaited_sources(const InFlightKeys& coming, const KeyTile& tile, std::int32_t keys) {
  if (tile.record_begin == tile.record_end) return 0;
  return sources_of(coming, {tile.key_begin, tile.key_begin + keys});
}

std::vector<TileArrival> tile_arrivals(const InFlightKeys& coming, std::span<const KeyTile> tiles,
                                       std::span<const KeySegment> segments, std::int32_t keys,
                                       bool awaits) {
  std::vector<TileArrival> arrivals;
  arrivals.reserve(tiles.size());
  for (const KeyTile& tile : tiles) {
    const auto segment = std::upper_bound(
        segments.begin(), segments.end(), tile.key_begin,
        [](std::int32_t row, const KeySegment& other) { return row < other.row_end; });
    arrivals.push_back({.sources = awaits ? awaited_sources(coming, tile, keys) : 0,
                        .first_segment = static_cast<std::int32_t>(segment - segments.begin())});
  }
  return arrivals;
}

}  // namespace magi
