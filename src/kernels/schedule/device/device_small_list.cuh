// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/schedule/device/device_join.cuh"
#include "kernels/schedule/device/device_split.cuh"

// A whole list of few slices: each lane holds a slice, and each warp of the device takes a tile.
// The lanes cut their slices to it, which gives the tile's parts in order. One launch prices the
// tiles. In the next each warp finds, from all tiles, the places of its tile and the tile's
// records, and writes them.
namespace magi {

inline constexpr int kSmallThreads = 256;
inline constexpr int kSmallWarps = kSmallThreads / kWarpLanes;
inline constexpr std::int32_t kSmallSlices = kWarpLanes;
inline constexpr std::int32_t kSmallTiles = 2048;
/// A piece more for each part that is cut.
inline constexpr std::int32_t kSmallParts = 2 * kSmallSlices;

struct SmallListShared {
  BandSlice parts[kSmallWarps][kSmallParts];
};

class SmallListMaker {
 public:
  __device__ SmallListMaker(SmallListShared& shared, const DeviceBuild& build)
      : parts_(shared.parts[warp_index()]), build_(build), grid_(build.grid) {
    if (lane_index() < build.source.count) {
      const CheckedSlice checked =
          read_slice(build.source, lane_index(), grid_.rows_q, build.rows_k);
      own_ = checked.band;
      bad_field_ = checked.bad_field;
    }
  }

  __device__ void price_tiles() const {
#pragma unroll 1
    for (std::int32_t tile = first_task(); tile < grid_.num_tiles; tile += task_stride()) {
      price(tile, find_parts(tile));
    }
  }

  __device__ void write_tiles() {
#pragma unroll 1
    for (std::int32_t tile = first_task(); tile < grid_.num_tiles; tile += task_stride()) {
      write_tile(tile);
    }
    if (first_task() == 0) report();
  }

 private:
  /// A tile's parts, one per lane or joined in shared memory.
  struct Parts {
    BandSlice own;          ///< empty if the lane's slice has none
    std::int32_t place;     ///< of `own` among them
    std::int32_t count;     ///< before joining
    std::int32_t num_left;  ///< after joining; 0: none were joined
    int last_lane;          ///< that has a part; 0 if none has
  };

  __device__ Parts find_parts(std::int32_t tile) const {
    Parts found;
    found.own = part_of_tile(grid_, own_, tile);
    const bool has_part = found.own.q0 < found.own.q1;
    const unsigned with_parts = __ballot_sync(kFullWarp, has_part);
    found.place = __popc(with_parts & ((1u << lane_index()) - 1));
    found.count = __popc(with_parts);
    found.num_left = 0;
    found.last_lane = max(kWarpLanes - 1 - __clz(static_cast<int>(with_parts)), 0);
    if (found.count < 2) return found;
    __syncwarp();  // other lanes may still read the tile before
    if (has_part) parts_[found.place] = found.own;
    __syncwarp();
    found.num_left = PartJoiner<kSmallParts>(parts_, JoinAlong::Queries).join(found.count);
    return found;
  }

  /// Writes the tile's price and its number of records, empty ones included.
  __device__ void price(std::int32_t tile, const Parts& found) const {
    BandSlice part = found.own;
    BandSlice last = shuffle_band(part, found.last_lane);
    if (found.num_left > 0) {
      part = BandSlice{};
      if (lane_index() < found.num_left) part = parts_[lane_index()];
      last = parts_[found.num_left - 1];
    }
    TileTally tally;
    tally.num_k_tiles = count_k_tiles(tile, part);
    const std::int32_t cost = cost_of_tally(grid_, build_.tile, tile, tally, last);
    if (lane_index() != 0) return;
    build_.sort_keys[0][tile] =
        static_cast<std::uint64_t>(cost) << 32 | static_cast<std::uint64_t>(found.count);
    build_.tallies[tile].num_k_tiles = tally.num_k_tiles;
  }

  /// Counts the k tiles of the lanes' parts, some of which may be empty.
  __device__ std::uint64_t count_k_tiles(std::int32_t tile, const BandSlice& part) const {
    const Range rows = rows_of_tile(grid_, tile);
    unsigned count = 0;
    if (part.q0 < part.q1) {
      count =
          static_cast<unsigned>(tile_run(part, rows.begin, rows.end, build_.tile.keys).num_tiles);
    }
    return __reduce_add_sync(kFullWarp, count);
  }

  __device__ std::int32_t cost_at(std::int32_t tile) const {
    return static_cast<std::int32_t>(build_.sort_keys[0][tile] >> 32);
  }

  __device__ void write_tile(std::int32_t tile) {
    const Parts found = find_parts(tile);
    TileWork work;
    work.tile = tile;
    work.cost = cost_at(tile);
    const std::int32_t place = find_place(work);
    write_records(found, work.record_begin);
    const std::int32_t num_left = found.num_left > 0 ? found.num_left : found.count;
    work.record_end = work.record_begin + num_left;
    if (lane_index() == 0) (is_splitting() ? build_.tiles : build_.works)[place] = work;
  }

  /// Returns the place among the tiles by falling cost, and sets where the records begin. Adds up
  /// all tiles.
  __device__ std::int32_t find_place(TileWork& work) {
    unsigned place = 0;
    unsigned begin = 0;
    unsigned num_records = 0;
    std::int32_t max_cost = 0;
    std::int64_t costs = 0;
#pragma unroll 4
    for (std::int32_t i = lane_index(); i < grid_.num_tiles; i += kWarpLanes) {
      const std::uint64_t other = build_.sort_keys[0][i];
      const auto cost = static_cast<std::int32_t>(other >> 32);
      const auto count = static_cast<unsigned>(other);
      const bool is_earlier = i < work.tile;
      place += cost > work.cost || (cost == work.cost && is_earlier) ? 1 : 0;
      begin += is_earlier ? count : 0;
      num_records += count;
      max_cost = max(max_cost, cost);
      costs += cost;
    }
    work.record_begin = static_cast<std::int32_t>(__reduce_add_sync(kFullWarp, begin));
    num_records_ = __reduce_add_sync(kFullWarp, num_records);
    max_cost_ = __reduce_max_sync(kFullWarp, max_cost);
#pragma unroll
    for (int lanes = kWarpLanes / 2; lanes > 0; lanes /= 2) {
      costs += __shfl_xor_sync(kFullWarp, costs, lanes);
    }
    costs_ = costs;
    return static_cast<std::int32_t>(__reduce_add_sync(kFullWarp, place));
  }

  /// Whether any tile is split: if the longest is not, none is.
  __device__ bool is_splitting() const {
    return split_shares(build_.split, costs_, grid_.head_groups, build_.tile).is_split(max_cost_);
  }

  /// Reports the list; the warp of the first tile calls. Works of split tiles are not made yet.
  __device__ void report() const {
    const bool is_bad = bad_field_ != SliceField::None;
    const int first_bad = __ffs(static_cast<int>(__ballot_sync(kFullWarp, is_bad))) - 1;
    if (lane_index() != max(first_bad, 0)) return;
    DeviceListHeader header;
    header.bad_slice = bad_slice_word(lane_index(), bad_field_);
    header.num_records = num_records_;
    header.list_cost = static_cast<std::uint64_t>(costs_);
    header.outcome.packed_heads = grid_.packed_heads;
    header.outcome.head_groups = grid_.head_groups;
    header.is_splitting = is_splitting() ? 1 : 0;
    header.outcome.num_works = grid_.num_tiles;
    *build_.header = header;
  }

  __device__ void write_records(const Parts& found, std::int32_t begin) const {
    BandRecord record;
    if (found.num_left == 0) {
      record.band = found.own;
      if (found.own.q0 < found.own.q1) build_.records[begin + found.place] = record;
      return;
    }
    if (lane_index() >= found.count) return;
    if (lane_index() < found.num_left) record.band = parts_[lane_index()];
    build_.records[begin + lane_index()] = record;
  }

  BandSlice* parts_;  ///< of the warp's tile
  const DeviceBuild& build_;
  const TileGrid& grid_;
  BandSlice own_;  ///< the lane's slice
  SliceField bad_field_ = SliceField::None;
  // Over all tiles:
  std::uint64_t num_records_ = 0;
  std::int64_t costs_ = 0;
  std::int32_t max_cost_ = 0;
};

}  // namespace magi
