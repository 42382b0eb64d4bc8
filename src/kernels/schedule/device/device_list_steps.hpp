// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/host_device.hpp"
#include "kernels/schedule/host/forward_list.hpp"
#include "kernels/schedule/host/tile_join.hpp"
#include "kernels/schedule/host/tile_run.hpp"

// The arithmetic of one slice and one tile of a list made on the device. Tallies over slices are
// sums or maxima of integers, so threads in any order make the same list.
namespace magi {

/// The caller's slices: int32 arrays without gaps.
struct SliceArrays {
  const std::int32_t* q_ranges = nullptr;  ///< [count, 2]
  const std::int32_t* k_ranges = nullptr;  ///< [count, 2]
  const std::int32_t* types = nullptr;     ///< [count], numbers of MaskType; null: all full
  std::int32_t count = 0;
};

/// A field of a slice, in the order in which they are checked.
enum class SliceField : std::int32_t { None = 0, QBegin, QEnd, KBegin, KEnd, Type };

/// A slice clamped into the tensors and shrunk, and the first field that clamping changed.
struct CheckedSlice {
  BandSlice band;
  SliceField bad_field = SliceField::None;
};

/// A q tile's tally over the slices that it sees.
struct TileTally {
  std::uint64_t num_k_tiles = 0;
  std::int32_t num_records = 0;
  std::int32_t end_slice = 0;      ///< last slice that it sees + 1
  std::int32_t begin_inverse = 0;  ///< count - first slice that it sees, also a maximum
  std::int32_t padding = 0;
};
static_assert(sizeof(TileTally) == 24);

/// The grid of q tiles.
struct TileGrid {
  std::int32_t rows_q = 0;
  std::int32_t tile_tokens = 1;
  std::int32_t num_tiles = 0;
  std::int32_t packed_heads = 1;
  std::int32_t head_groups = 1;
};

/// The most tiles that the whole device sorts (device_rank.cuh); one cluster sorts more.
inline constexpr std::int32_t kMostRankedKeys = 8192;
/// The most slices of a build with bins, which also needs tiles that the whole device sorts.
inline constexpr std::int32_t kMostBinnedSlices = 8192;
/// Slices that the bin of a tile keeps: the most that are joined.
inline constexpr std::int32_t kBinSlices = kMostJoinedParts;
/// Tiles of a group, whose records are also counted together; a power of two.
inline constexpr std::int32_t kGroupTiles = 32;
inline constexpr std::int32_t kMostTileGroups = kMostRankedKeys / kGroupTiles;
inline constexpr std::int32_t kMaxTileCost = 1 << 30;
inline constexpr std::int32_t kNotStored = -1;  ///< the first record of a tile without room

MAGI_HOST_DEVICE std::int32_t clamp_row(std::int32_t value, std::int32_t low, std::int32_t high) {
  return value < low ? low : (value > high ? high : value);
}

/// Reads a slice. Clamps range ends into the tensors and to at least their begins; a slice of
/// unknown type is empty. Diagonals are those of the clamped ranges.
MAGI_HOST_DEVICE CheckedSlice read_slice(const SliceArrays& slices, std::int32_t index,
                                         std::int32_t rows_q, std::int32_t rows_k) {
  const std::int64_t pair = std::int64_t{2} * index;
  const std::int32_t q_begin = slices.q_ranges[pair];
  const std::int32_t q_end = slices.q_ranges[pair + 1];
  const std::int32_t k_begin = slices.k_ranges[pair];
  const std::int32_t k_end = slices.k_ranges[pair + 1];
  const std::int32_t type = slices.types == nullptr ? 0 : slices.types[index];
  BandSlice band;
  band.q0 = clamp_row(q_begin, 0, rows_q);
  band.q1 = clamp_row(q_end, band.q0, rows_q);
  band.k0 = clamp_row(k_begin, 0, rows_k);
  band.k1 = clamp_row(k_end, band.k0, rows_k);
  CheckedSlice result;
  const bool has_type = type >= 0 && type <= 3;
  if (!has_type) result.bad_field = SliceField::Type;
  if (band.k1 != k_end) result.bad_field = SliceField::KEnd;
  if (band.k0 != k_begin) result.bad_field = SliceField::KBegin;
  if (band.q1 != q_end) result.bad_field = SliceField::QEnd;
  if (band.q0 != q_begin) result.bad_field = SliceField::QBegin;
  if (!has_type) return result;
  constexpr std::int32_t kHasUpper = 1;
  constexpr std::int32_t kHasLower = 2;
  if ((type & kHasUpper) != 0) band.d_max = band.k1 - band.q1;
  if ((type & kHasLower) != 0) band.d_min = band.k0 - band.q0;
  result.band = shrink(band);
  return result;
}

/// Returns a word whose maximum over slices names the first bad field of all; 0: none.
MAGI_HOST_DEVICE std::uint64_t bad_slice_word(std::int32_t index, SliceField field) {
  if (field == SliceField::None) return 0;
  return ~((static_cast<std::uint64_t>(index) << 3) | static_cast<std::uint64_t>(field));
}

struct BadSliceField {
  std::int64_t index = 0;
  SliceField field = SliceField::None;
};

/// Returns the field that a word other than 0 names.
MAGI_HOST_DEVICE BadSliceField bad_slice_of(std::uint64_t word) {
  BadSliceField bad;
  bad.index = static_cast<std::int64_t>(~word >> 3);
  bad.field = static_cast<SliceField>(~word & 7);
  return bad;
}

/// Returns the tiles that a shrunk slice reaches.
MAGI_HOST_DEVICE Range reached_tiles(const TileGrid& grid, const BandSlice& band) {
  Range tiles;
  if (band.q0 >= band.q1) return tiles;
  tiles.begin = band.q0 / grid.tile_tokens;
  tiles.end = (band.q1 - 1) / grid.tile_tokens + 1;
  return tiles;
}

MAGI_HOST_DEVICE Range rows_of_tile(const TileGrid& grid, std::int32_t tile) {
  Range rows;
  rows.begin = tile * grid.tile_tokens;
  rows.end =
      grid.rows_q - rows.begin > grid.tile_tokens ? rows.begin + grid.tile_tokens : grid.rows_q;
  return rows;
}

/// Returns the tile's record of a slice, empty if the tile sees none of its keys.
MAGI_HOST_DEVICE BandSlice part_of_tile(const TileGrid& grid, const BandSlice& band,
                                        std::int32_t tile) {
  return shrink(cut_q(band, rows_of_tile(grid, tile)));
}

/// Returns the tally of one record. A tile's tally sums the first two members; others are maxima.
MAGI_HOST_DEVICE TileTally tally_of_part(const TileGrid& grid, const BandSlice& part,
                                         std::int32_t tile, std::int32_t keys, std::int32_t slice,
                                         std::int32_t num_slices) {
  const Range rows = rows_of_tile(grid, tile);
  TileTally tally;
  tally.num_k_tiles =
      static_cast<std::uint64_t>(tile_run(part, rows.begin, rows.end, keys).num_tiles);
  tally.num_records = 1;
  tally.end_slice = slice + 1;
  tally.begin_inverse = num_slices - slice;
  return tally;
}

/// Returns the tile's cost, the same as in the host's list. `last` is the tile's last record.
MAGI_HOST_DEVICE std::int32_t cost_of_tally(const TileGrid& grid, const TileShape& shape,
                                            std::int32_t tile, const TileTally& tally,
                                            const BandSlice& last) {
  const Range rows = rows_of_tile(grid, tile);
  const TileRun run = tile_run(last, rows.begin, rows.end, shape.keys);
  const bool is_trimmed =
      tally.num_k_tiles >= 2 && ends_short(last, run, shape.keys, shape.trimmed_keys);
  const std::int64_t cost =
      2 * static_cast<std::int64_t>(tally.num_k_tiles) - (is_trimmed ? 1 : 0) + shape.overhead;
  return static_cast<std::int32_t>(cost < kMaxTileCost ? cost : kMaxTileCost);
}

/// Returns the item, without cost, of a tile whose records would begin at `begin` of `capacity`.
MAGI_HOST_DEVICE TileWork work_of_tile(std::int32_t tile, const TileTally& tally,
                                       std::int64_t begin, std::int64_t capacity,
                                       std::int32_t num_slices) {
  TileWork work;
  work.tile = tile;
  const std::int64_t end = begin + tally.num_records;
  if (end <= capacity) {
    work.record_begin = static_cast<std::int32_t>(begin);
    work.record_end = static_cast<std::int32_t>(end);
  } else if (tally.num_records > 0) {
    work.record_begin = -tally.begin_inverse;
    work.record_end = tally.end_slice - num_slices;
  }
  return work;
}

}  // namespace magi
