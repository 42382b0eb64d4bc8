// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/schedule/device/device_join.cuh"
#include "kernels/schedule/device/device_split.cuh"

// A whole list of few slices: each warp of the device takes a tile and cuts all slices to it. One
// launch prices the tiles. In the next each warp finds, from all prices, the places of its tile and
// the tile's records, and writes them. It joins the tile's parts again, beside the first launch: to
// hand them over would take more memory, and no less time.
namespace magi {

inline constexpr int kSmallThreads = 256;
inline constexpr int kSmallWarps = kSmallThreads / kWarpLanes;
inline constexpr std::int32_t kSmallSlices = kMostJoinedParts;
inline constexpr std::int32_t kSmallTiles = 2048;
static_assert(kSmallSlices <= kSmallThreads);

struct SmallListShared {
  CheckedSlice slices[kSmallSlices];
  BandSlice parts[kSmallWarps][kMostJoinedParts];
  std::uint64_t prices[kSmallTiles];
};

class SmallListMaker {
 public:
  /// Finds the parts of the warp's tile, from the slices alone.
  __device__ SmallListMaker(SmallListShared& shared, const DeviceBuild& build)
      : shared_(shared),
        parts_(shared.parts[warp_index()]),
        build_(build),
        grid_(build.grid),
        tile_(first_task()) {
    const auto own = static_cast<std::int32_t>(threadIdx.x);
    if (own < build.source.count) {
      shared.slices[own] = read_slice(build.source, own, grid_.rows_q, build.rows_k);
    }
    __syncthreads();
    if (tile_ >= grid_.num_tiles) return;
    num_parts_ = cut_slices();
    num_left_ = join_by_warp(parts_, num_parts_, JoinAlong::Queries);
    if (num_left_ == 0) num_left_ = num_parts_ < 2 ? num_parts_ : cut_slices();
  }

  /// Writes the tile's price and its number of records, empty ones included.
  __device__ void price_tile() const {
    if (tile_ >= grid_.num_tiles) return;
    TileTally tally;
    tally.num_k_tiles =
        count_k_tiles(parts_, num_left_, rows_of_tile(grid_, tile_), build_.tile.keys);
    BandSlice last;
    if (num_left_ > 0) last = parts_[num_left_ - 1];
    const std::int32_t cost = cost_of_tally(grid_, build_.tile, tile_, tally, last);
    if (lane_index() != 0) return;
    build_.sort_keys[0][tile_] =
        static_cast<std::uint64_t>(cost) << 32 | static_cast<std::uint64_t>(num_parts_);
    build_.tallies[tile_].num_k_tiles = tally.num_k_tiles;
  }

  /// Needs the prices of all tiles. All threads of the block call.
  __device__ void write_tile() {
#pragma unroll 4
    for (auto i = static_cast<std::int32_t>(threadIdx.x); i < grid_.num_tiles; i += kSmallThreads) {
      shared_.prices[i] = build_.sort_keys[0][i];
    }
    __syncthreads();
    if (tile_ < grid_.num_tiles) {
      TileWork work;
      work.tile = tile_;
      work.cost = static_cast<std::int32_t>(shared_.prices[tile_] >> 32);
      const std::int32_t place = find_place(work);
      write_records(work.record_begin);
      work.record_end = work.record_begin + num_left_;
      if (lane_index() == 0) (is_splitting() ? build_.tiles : build_.works)[place] = work;
    }
    if (tile_ == 0) report();
  }

 private:
  /// Puts the tile's parts in the order of their slices. Returns their number.
  __device__ std::int32_t cut_slices() const {
    std::int32_t count = 0;
    __syncwarp();  // other lanes may still read parts
#pragma unroll 1
    for (std::int32_t first = 0; first < build_.source.count; first += kWarpLanes) {
      const std::int32_t slice = first + lane_index();
      BandSlice whole;
      if (slice < build_.source.count) whole = shared_.slices[slice].band;
      const BandSlice part = part_of_tile(grid_, whole, tile_);
      const bool has_part = part.q0 < part.q1;
      const unsigned with_parts = __ballot_sync(kFullWarp, has_part);
      if (has_part) parts_[count + __popc(with_parts & ((1u << lane_index()) - 1))] = part;
      count += __popc(with_parts);
    }
    __syncwarp();
    return count;
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
      const std::uint64_t other = shared_.prices[i];
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
    unsigned first_bad = kSmallSlices;
    for (std::int32_t i = lane_index(); i < build_.source.count; i += kWarpLanes) {
      if (shared_.slices[i].bad_field == SliceField::None) continue;
      first_bad = min(first_bad, static_cast<unsigned>(i));
    }
    first_bad = __reduce_min_sync(kFullWarp, first_bad);
    if (lane_index() != 0) return;
    DeviceListHeader header;
    if (first_bad < kSmallSlices) {
      header.bad_slice =
          bad_slice_word(static_cast<std::int32_t>(first_bad), shared_.slices[first_bad].bad_field);
    }
    header.num_records = num_records_;
    header.list_cost = static_cast<std::uint64_t>(costs_);
    header.outcome.packed_heads = grid_.packed_heads;
    header.outcome.head_groups = grid_.head_groups;
    header.is_splitting = is_splitting() ? 1 : 0;
    header.outcome.num_works = grid_.num_tiles;
    *build_.header = header;
  }

  /// Joining leaves empty records behind the others.
  __device__ void write_records(std::int32_t begin) const {
#pragma unroll 1
    for (std::int32_t i = lane_index(); i < num_parts_; i += kWarpLanes) {
      BandRecord record;
      if (i < num_left_) record.band = parts_[i];
      build_.records[begin + i] = record;
    }
  }

  SmallListShared& shared_;
  BandSlice* parts_;  ///< of the warp's tile
  const DeviceBuild& build_;
  const TileGrid& grid_;
  std::int32_t tile_;
  std::int32_t num_parts_ = 0;  ///< before joining
  std::int32_t num_left_ = 0;   ///< after it, in `parts_`
  // Over all tiles:
  std::uint64_t num_records_ = 0;
  std::int64_t costs_ = 0;
  std::int32_t max_cost_ = 0;
};

}  // namespace magi
