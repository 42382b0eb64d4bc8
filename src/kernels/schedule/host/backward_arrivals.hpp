// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/schedule/host/in_flight_keys.hpp"
#include "magi/band.hpp"

// What the k tiles of a backward list must know of keys that come while the kernel runs.
namespace magi {

struct KeyTile;

/// Rows of K up to row_end, from where the segment before ends: of one part, or of none.
struct KeySegment {
  std::int32_t row_end = 0;
  std::int32_t part = -1;  ///< in InFlightKeys::parts; -1: rows that are there from the start

  friend bool operator==(const KeySegment&, const KeySegment&) = default;
};

/// The keys that an item of a k tile waits for, and where the gradients of its keys go.
struct alignas(8) TileArrival {
  std::uint32_t sources = 0;       ///< bit s: keys of source s; 0: nothing is waited for
  std::int32_t first_segment = 0;  ///< that holds the first key of the tile

  friend bool operator==(const TileArrival&, const TileArrival&) = default;
};

/// All rows of K, cut where parts begin and end.
std::vector<KeySegment> key_segments(const InFlightKeys& coming, std::int32_t rows_k);

/// The sources that an item of the tile waits for. A tile is loaded as `keys` rows however few it
/// owns, and what has not come may be NaN: it waits for all of them. A tile without records loads
/// nothing.
std::uint32_t awaited_sources(const InFlightKeys& coming, const KeyTile& tile, std::int32_t keys);

/// The arrivals of each tile; `awaits` tells whether items wait at all.
std::vector<TileArrival> tile_arrivals(const InFlightKeys& coming, std::span<const KeyTile> tiles,
                                       std::span<const KeySegment> segments, std::int32_t keys,
                                       bool awaits);

}  // namespace magi
