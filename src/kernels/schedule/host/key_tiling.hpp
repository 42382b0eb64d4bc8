// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/schedule/host/schedule_cost.hpp"

// Cuts the keys of a backward list into k tiles, and slices into records of these.
namespace magi {

/// The ways to cut the keys [0, rows_k) into k tiles of up to `keys`: on a plain grid and, if that
/// differs, where slices begin.
std::vector<std::vector<KeyTile>> key_tilings(std::int32_t rows_k, std::int32_t keys,
                                              std::span<const BandSlice> slices);

/// Calls visit(tile index, part) for each k tile that the slice touches.
template <typename Visit>
void for_each_part(const std::vector<KeyTile>& tiles, const BandSlice& slice, Visit visit) {
  const BandSlice band = shrink(slice);
  if (band.q0 >= band.q1) return;
  auto tile =
      std::upper_bound(tiles.begin(), tiles.end(), band.k0,
                       [](std::int32_t key, const KeyTile& other) { return key < other.key_end; });
  for (; tile != tiles.end() && tile->key_begin < band.k1; ++tile) {
    const BandSlice part = shrink(cut_k(band, {tile->key_begin, tile->key_end}));
    if (part.q0 < part.q1) visit(static_cast<std::size_t>(tile - tiles.begin()), part);
  }
}

/// The tiles with their records, grouped by tile. If a tile has at most `most_joined` parts they
/// are joined, else they keep the order of the slices. Throws InvalidArgument for more records than
/// int32 can number.
Tiling fill_tiling(std::vector<KeyTile> tiles, std::span<const BandSlice> slices,
                   std::int32_t most_joined = std::numeric_limits<std::int32_t>::max());

}  // namespace magi
