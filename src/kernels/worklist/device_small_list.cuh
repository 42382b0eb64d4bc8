// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cooperative_groups.h>

#include "kernels/worklist/device_join.cuh"
#include "kernels/worklist/device_split.cuh"

// A whole list of few slices and tiles, by one cluster between one barrier and the next: each lane
// holds a slice, each warp takes a tile at a time, and every CTA has a table of all tiles, from
// which a warp counts where its tile's records and its place in the list are. A list of many
// launches spends its time on launches and on reading code that is walked once.
namespace magi {

inline constexpr int kSmallCtas = 8;
inline constexpr int kSmallThreads = 512;
inline constexpr int kSmallWarps = kSmallThreads / kWarpLanes;
inline constexpr std::int32_t kSmallSlices = kWarpLanes;
inline constexpr std::int32_t kSmallTiles = 1280;  ///< of all candidates
/// A piece more for each part that is cut.
inline constexpr std::int32_t kSmallParts = 2 * kSmallSlices;

/// Sums over tiles of a candidate.
struct SmallSums {
  std::uint64_t plain_cost = 0;  ///< as long as nothing is joined
  std::uint64_t cost = 0;
  std::int32_t num_records = 0;
  std::int32_t max_cost = 0;
};

struct SmallTile {
  std::int32_t num_records;  ///< those left empty included
  std::int32_t cost;
};

struct SmallListShared {
  BandSlice slices[kSmallSlices];
  BandSlice parts[kSmallWarps][kSmallParts];
  SmallTile tiles[kSmallTiles];              ///< written by all CTAs
  SmallSums warp_sums[kSmallWarps];          ///< of one candidate
  SmallSums sums[kSmallCtas][kMaxPackings];  ///< written by all CTAs
  std::uint64_t plain_costs[kMaxPackings];   ///< of all CTAs' tiles
  SplitShared<kSmallThreads> split;
};

class SmallListMaker {
 public:
  __device__ SmallListMaker(SmallListShared& shared, const DeviceBuild& build)
      : shared_(shared),
        build_(build),
        cluster_(cooperative_groups::this_cluster()),
        rank_(static_cast<std::int32_t>(cluster_.block_rank())) {}

  __device__ void run() {
    read_slices();
    cluster_.sync();  // nobody writes to a CTA that has not begun
    if (lane_index() < build_.source.count) own_ = shared_.slices[lane_index()];
#pragma unroll 1
    for (packing_ = 0; packing_ < build_.num_grids; ++packing_) price_tiles();
    cluster_.sync();
    choose();
    write_tiles();
    if (!is_splitting_) return;
    cluster_.sync();
    TileSplitter(shared_.split, build_).run();
  }

 private:
  /// A tile's parts, one per lane or joined in shared memory.
  struct Parts {
    BandSlice own;          ///< empty where the lane's slice leaves none
    std::int32_t place;     ///< of `own` among them
    std::int32_t count;     ///< as long as nothing is joined
    std::int32_t num_left;  ///< joined; 0: nothing has been joined
    int last_lane;          ///< that has a part; 0 where there is none
  };

  __device__ std::int32_t warp_of_cluster() const { return rank_ * kSmallWarps + warp_index(); }

  /// Each CTA keeps all slices; the first tells of bad ones.
  __device__ void read_slices() {
    const auto i = static_cast<std::int32_t>(threadIdx.x);
    if (i >= kWarpLanes) return;
    CheckedSlice checked;
    if (i < build_.source.count) {
      checked = read_slice(build_.source, i, build_.grids[0].rows_q, build_.rows_k);
      shared_.slices[i] = checked.band;
    }
    if (rank_ != 0) return;
    const bool is_bad = checked.bad_field != SliceField::None;
    const int first_bad = __ffs(static_cast<int>(__ballot_sync(kFullWarp, is_bad))) - 1;
    if (i == max(first_bad, 0)) {
      *build_.header = DeviceListHeader{};
      build_.header->bad_slice = bad_slice_word(i, checked.bad_field);
    }
  }

  __device__ Parts find_parts(const TileGrid& grid, std::int32_t tile) const {
    Parts found;
    found.own = part_of_tile(grid, own_, tile);
    const bool has_part = found.own.q0 < found.own.q1;
    const unsigned with_parts = __ballot_sync(kFullWarp, has_part);
    found.place = __popc(with_parts & ((1u << lane_index()) - 1));
    found.count = __popc(with_parts);
    found.num_left = 0;
    found.last_lane = max(kWarpLanes - 1 - __clz(static_cast<int>(with_parts)), 0);
    if (found.count < 2) return found;
    BandSlice* parts = shared_.parts[warp_index()];
    __syncwarp();  // others may still read those of the tile before
    if (has_part) parts[found.place] = found.own;
    __syncwarp();
    found.num_left = PartJoiner<kSmallParts>(parts, JoinAlong::Queries).join(found.count);
    return found;
  }

  /// Prices the tile as it is and as long as nothing is joined, and returns both.
  __device__ SmallSums price(const TileGrid& grid, std::int32_t tile, const Parts& found) const {
    std::int32_t num_k_tiles = count_k_tiles(grid, tile, found.own);
    const BandSlice last = shuffle_band(found.own, found.last_lane);
    SmallSums sums;
    sums.num_records = found.count;
    sums.max_cost = cost_of(grid, tile, num_k_tiles, last);
    sums.plain_cost = static_cast<std::uint64_t>(sums.max_cost);
    if (found.num_left > 0) {
      const BandSlice* parts = shared_.parts[warp_index()];
      BandSlice part;
      if (lane_index() < found.num_left) part = parts[lane_index()];
      num_k_tiles = count_k_tiles(grid, tile, part);
      sums.max_cost = cost_of(grid, tile, num_k_tiles, parts[found.num_left - 1]);
    }
    sums.cost = static_cast<std::uint64_t>(sums.max_cost);
    if (lane_index() == 0) {
      build_.tallies[grid.first_tally + tile].num_k_tiles = static_cast<std::uint64_t>(num_k_tiles);
    }
    return sums;
  }

  /// Of the parts that the lanes hold, of which some may be empty.
  __device__ std::int32_t count_k_tiles(const TileGrid& grid, std::int32_t tile,
                                        const BandSlice& part) const {
    const Range rows = rows_of_tile(grid, tile);
    unsigned count = 0;
    if (part.q0 < part.q1) {
      count =
          static_cast<unsigned>(tile_run(part, rows.begin, rows.end, build_.tile.keys).num_tiles);
    }
    return static_cast<std::int32_t>(__reduce_add_sync(kFullWarp, count));
  }

  __device__ std::int32_t cost_of(const TileGrid& grid, std::int32_t tile, std::int32_t num_k_tiles,
                                  const BandSlice& last) const {
    TileTally tally;
    tally.num_k_tiles = static_cast<std::uint64_t>(num_k_tiles);
    return cost_of_tally(grid, build_.tile, tile, tally, last);
  }

  /// Enters the tiles of a candidate into all tables, and their sums.
  __device__ void price_tiles() {
    const TileGrid& grid = build_.grids[packing_];
    SmallSums sums;
#pragma unroll 1
    for (std::int32_t tile = warp_of_cluster(); tile < grid.num_tiles;
         tile += kSmallCtas * kSmallWarps) {
      const SmallSums own = price(grid, tile, find_parts(grid, tile));
      add(sums, own);
      if (lane_index() < kSmallCtas) {
        SmallTile& entry = shared_.tiles[grid.first_tally + tile];
        *cluster_.map_shared_rank(&entry, static_cast<unsigned>(lane_index())) = {own.num_records,
                                                                                  own.max_cost};
      }
    }
    if (lane_index() == 0) shared_.warp_sums[warp_index()] = sums;
    __syncthreads();
    if (threadIdx.x < kSmallCtas) {
      SmallSums all;
#pragma unroll 1
      for (int warp = 0; warp < kSmallWarps; ++warp) add(all, shared_.warp_sums[warp]);
      *cluster_.map_shared_rank(&shared_.sums[rank_][packing_], threadIdx.x) = all;
    }
    __syncthreads();
  }

  __device__ static void add(SmallSums& sums, const SmallSums& more) {
    sums.plain_cost += more.plain_cost;
    sums.cost += more.cost;
    sums.num_records += more.num_records;
    sums.max_cost = max(sums.max_cost, more.max_cost);
  }

  /// The candidate, and sums over all its tiles: every thread alike.
  __device__ void choose() {
    if (threadIdx.x < static_cast<unsigned>(build_.num_grids)) {
      std::uint64_t cost = 0;
#pragma unroll 1
      for (int cta = 0; cta < kSmallCtas; ++cta) cost += shared_.sums[cta][threadIdx.x].plain_cost;
      shared_.plain_costs[threadIdx.x] = cost;
    }
    __syncthreads();
    packing_ = cheapest_packing(build_.grids, shared_.plain_costs, build_.num_grids);
#pragma unroll 1
    for (int cta = 0; cta < kSmallCtas; ++cta) add(all_, shared_.sums[cta][packing_]);
    const auto cost = static_cast<std::int64_t>(all_.cost);
    const std::int32_t head_groups = build_.grids[packing_].head_groups;
    // Where the longest tile is not split, none is.
    is_splitting_ =
        split_shares(build_.split, cost, head_groups, build_.tile).is_split(all_.max_cost);
    if (rank_ == 0 && threadIdx.x == 0) report();
  }

  __device__ void report() const {
    const TileGrid& grid = build_.grids[packing_];
    DeviceListHeader& header = *build_.header;
    header.num_records = static_cast<std::uint64_t>(all_.num_records);
    header.list_cost = all_.cost;
    header.packing = packing_;
    header.outcome.packed_heads = grid.packed_heads;
    header.outcome.head_groups = grid.head_groups;
    header.outcome.num_works = grid.num_tiles;
  }

  __device__ void write_tiles() {
    const TileGrid& grid = build_.grids[packing_];
    TileWork* works = is_splitting_ ? build_.tiles : build_.works;
#pragma unroll 1
    for (std::int32_t tile = warp_of_cluster(); tile < grid.num_tiles;
         tile += kSmallCtas * kSmallWarps) {
      const Parts found = find_parts(grid, tile);
      TileWork work;
      work.tile = tile;
      work.cost = shared_.tiles[grid.first_tally + tile].cost;
      const std::int32_t place = find_place(grid, work);
      write_records(found, work.record_begin);
      const std::int32_t num_left = found.num_left > 0 ? found.num_left : found.count;
      work.record_end = work.record_begin + num_left;
      if (lane_index() == 0) works[place] = work;
    }
  }

  /// Returns the place among the tiles by falling cost, and sets where the records begin.
  __device__ std::int32_t find_place(const TileGrid& grid, TileWork& work) const {
    const SmallTile* tiles = shared_.tiles + grid.first_tally;
    unsigned place = 0;
    unsigned begin = 0;
#pragma unroll 4
    for (std::int32_t i = lane_index(); i < grid.num_tiles; i += kWarpLanes) {
      const SmallTile other = tiles[i];
      const bool is_earlier = i < work.tile;
      place += other.cost > work.cost || (other.cost == work.cost && is_earlier) ? 1 : 0;
      begin += is_earlier ? static_cast<unsigned>(other.num_records) : 0;
    }
    work.record_begin = static_cast<std::int32_t>(__reduce_add_sync(kFullWarp, begin));
    return static_cast<std::int32_t>(__reduce_add_sync(kFullWarp, place));
  }

  __device__ void write_records(const Parts& found, std::int32_t begin) const {
    BandRecord record;
    if (found.num_left == 0) {
      record.band = found.own;
      if (found.own.q0 < found.own.q1) build_.records[begin + found.place] = record;
      return;
    }
    if (lane_index() >= found.count) return;
    if (lane_index() < found.num_left) record.band = shared_.parts[warp_index()][lane_index()];
    build_.records[begin + lane_index()] = record;
  }

  SmallListShared& shared_;
  const DeviceBuild& build_;
  cooperative_groups::cluster_group cluster_;
  const std::int32_t rank_;
  BandSlice own_;  ///< the lane's slice
  std::int32_t packing_ = 0;
  SmallSums all_;  ///< of the chosen candidate
  bool is_splitting_ = false;
};

}  // namespace magi
