// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/schedule/host/in_flight_keys.hpp"
#include "magi/band.hpp"

// The in-flight keys that items of a backward list wait for, and where their gradients go.
namespace magi {

struct KeyTile;

/// Rows of K from the end of the segment before to row_end, all of one part or of none.
struct KeySegment {
  std::int32_t row_end = 0;
  std::int32_t part = -1;  ///< in InFlightKeys::parts; -1: rows present from the start

  friend bool operator==(const KeySegment&, const KeySegment&) = default;
};

/// The keys that an item of a k tile waits for, and where the gradients of its keys go.
struct alignas(8) TileArrival {
  std::uint32_t sources = 0;       ///< bit s: waits for keys of source s
  std::int32_t first_segment = 0;  ///< the segment of the tile's first key

  friend bool operator==(const TileArrival&, const TileArrival&) = default;
};

/// Cuts all rows of K where parts begin and end.
std::vector<KeySegment> key_segments(const InFlightKeys& coming, std::int32_t rows_k);

/// The sources that an item of the tile waits for. It loads `keys` rows, however few the tile owns,
/// and waits for all of them, as rows that have not arrived may be NaN. A tile without records
/// loads nothing.
std::uint32_t awaited_sources(const InFlightKeys& coming, const KeyTile& tile, std::int32_t keys);

/// The arrivals of each tile; `awaits` tells whether items wait at all.
std::vector<TileArrival> tile_arrivals(const InFlightKeys& coming, std::span<const KeyTile> tiles,
                                       std::span<const KeySegment> segments, std::int32_t keys,
                                       bool awaits);

}  // namespace magi
