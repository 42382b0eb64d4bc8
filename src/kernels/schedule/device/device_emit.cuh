// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/schedule/device/device_build.cuh"
#include "kernels/schedule/device/device_join.cuh"
#include "kernels/schedule/device/device_slice_order.cuh"

namespace magi {

inline constexpr std::int32_t kFewRecords = kMostJoinedParts;  ///< written by one warp

/// Sums and maxima over tiles.
struct TileCosts {
  std::int64_t sum = 0;
  std::int32_t most = 0;
  std::int32_t most_inverse = 0;  ///< kMaxTileCost - the least
};

struct EmitShared {
  std::int32_t ids[kEmitWarps][kFewRecords];
  BandSlice parts[kEmitWarps][kFewRecords];
  SliceOrderShared order;
  TileCosts costs[kEmitWarps];
};

/// Places the records of each tile, unless that is done, and writes them and the sort key of the
/// tile. A warp joins few records. Many, and those that cannot be joined, stay in the order of the
/// slices.
class RecordWriter {
 public:
  __device__ RecordWriter(EmitShared& shared, const DeviceBuild& build)
      : shared_(shared), build_(build), grid_(build.grid) {}

  __device__ void run() {
    if (has_bins() && first_task() == 0) {
      const auto num_records = static_cast<std::uint64_t>(sums_of(0).total);
      if (lane_index() == 0) report_records(build_, num_records);
    }
    const std::int32_t stride = static_cast<std::int32_t>(gridDim.x) * kEmitWarps;
    const auto first = static_cast<std::int32_t>(blockIdx.x) * kEmitWarps;
#pragma unroll 1
    for (std::int32_t tile = first; tile < grid_.num_tiles; tile += stride) {
      const std::int32_t own = tile + warp_index();
      const TileWork work = has_bins() ? place(own) : placed(own);
      const bool has_few = num_stored(work) <= kFewRecords;
      if (own < grid_.num_tiles) finish(work, has_few ? write_few(work) : 0);
      if (__syncthreads_or(has_few ? 0 : 1) == 0) continue;
#pragma unroll 1
      for (std::int32_t other = tile; other < tile + kEmitWarps; ++other) {
        const TileWork many = placed(other);
        if (num_stored(many) > kFewRecords) write_many(many);
      }
    }
    report();
  }

 private:
  __device__ bool has_bins() const { return build_.bins != nullptr; }
  __device__ RecordSums sums_of(std::int32_t tile) const {
    return sum_records({build_.tallies, build_.group_records, build_.bins}, grid_.num_tiles, tile);
  }

  __device__ TileWork placed(std::int32_t tile) const {
    return tile < grid_.num_tiles ? build_.placed[tile] : TileWork{};
  }
  __device__ TileWork place(std::int32_t tile) const {
    if (tile >= grid_.num_tiles) return TileWork{};
    return work_of_tile(tile, build_.tallies[tile], sums_of(tile).before, build_.record_capacity,
                        build_.source.count);
  }

  __device__ static std::int32_t num_stored(const TileWork& work) {
    return work.record_begin < 0 ? 0 : work.record_end - work.record_begin;
  }

  __device__ void report() const {
    if (lane_index() == 0) shared_.costs[warp_index()] = costs_;
    __syncthreads();
    if (warp_index() != 0) return;
    TileCosts costs;
    if (lane_index() < kEmitWarps) costs = shared_.costs[lane_index()];
    DeviceListHeader& header = *build_.header;
    add_of_warp(header.list_cost, costs.sum);
    const std::int32_t most = __reduce_max_sync(kFullWarp, costs.most);
    const std::int32_t most_inverse = __reduce_max_sync(kFullWarp, costs.most_inverse);
    if (lane_index() != 0) return;
    atomicMax(&header.max_cost, most);
    atomicMax(&header.max_cost_inverse, most_inverse);
  }

  /// Prices a tile with known records, of which joining left `num_left`, and writes its work.
  __device__ void finish(TileWork work, std::int32_t num_left) {
    if (num_left > 0) {
      price_joined(work, num_left);
    } else {
      work.cost = price_tile(build_, work.tile);
    }
    costs_.sum += work.cost;
    costs_.most = max(costs_.most, work.cost);
    costs_.most_inverse = max(costs_.most_inverse, kMaxTileCost - work.cost);
    if (lane_index() != 0) return;
    const auto below = static_cast<std::uint64_t>(kMaxTileCost - work.cost);
    build_.sort_keys[0][work.tile] = below << 32 | static_cast<std::uint64_t>(work.tile);
    build_.placed[work.tile] = work;
  }

  /// Writes the records of a tile. Returns the number that joining left; 0: none were joined.
  __device__ std::int32_t write_few(const TileWork& work) const {
    const std::int32_t count = num_stored(work);
    const std::int32_t* found = has_bins() ? build_.bins + std::int64_t{work.tile} * kBinSlices
                                           : build_.slice_ids + work.record_begin;
    std::int32_t* ids = shared_.ids[warp_index()];
    BandSlice* parts = shared_.parts[warp_index()];
    __syncwarp();  // other lanes may still read the tile before
#pragma unroll 1
    for (std::int32_t i = lane_index(); i < count; i += kWarpLanes) {
      ids[i] = found[i];
      parts[i] = part_of_tile(grid_, build_.slices[ids[i]].band, work.tile);
    }
    __syncwarp();
    const std::int32_t num_left = join_by_warp(parts, count, JoinAlong::Queries);
    if (num_left == 0) {
      write_in_order(work, ids);
    } else {
      write_joined(work, num_left);
    }
    return num_left;
  }

  __device__ void write_in_order(const TileWork& work, const std::int32_t* ids) const {
    const std::int32_t count = num_stored(work);
#pragma unroll 1
    for (std::int32_t i = lane_index(); i < count; i += kWarpLanes) {
      std::int32_t rank = 0;
#pragma unroll 4
      for (std::int32_t j = 0; j < count; ++j) rank += ids[j] < ids[i] ? 1 : 0;
      write(work, work.record_begin + rank, ids[i]);
    }
  }

  __device__ void write_joined(const TileWork& work, std::int32_t num_left) const {
    const std::int32_t count = num_stored(work);
#pragma unroll 1
    for (std::int32_t i = lane_index(); i < count; i += kWarpLanes) {
      BandRecord record;
      if (i < num_left) record.band = shared_.parts[warp_index()][i];
      build_.records[work.record_begin + i] = record;
    }
  }

  __device__ void price_joined(TileWork& work, std::int32_t count) const {
    const BandSlice* parts = shared_.parts[warp_index()];
    TileTally tally;
    tally.num_k_tiles =
        count_k_tiles(parts, count, rows_of_tile(grid_, work.tile), build_.tile.keys);
    work.record_end = work.record_begin + count;
    work.cost = cost_of_tally(grid_, build_.tile, work.tile, tally, parts[count - 1]);
    if (lane_index() != 0) return;
    build_.tallies[work.tile].num_k_tiles = tally.num_k_tiles;
  }

  __device__ void write(const TileWork& work, std::int32_t position, std::int32_t slice) const {
    BandRecord record;
    record.band = part_of_tile(grid_, build_.slices[slice].band, work.tile);
    build_.records[position] = record;
  }

  __device__ void write_many(const TileWork& work) const {
    const TileTally tally = build_.tallies[work.tile];
    const Range slices{build_.source.count - tally.begin_inverse, tally.end_slice};
    if (has_bins()) {
      for_each_found(
          shared_.order, slices, work.record_begin,
          [&](std::int32_t slice) {
            return part_of_tile(grid_, build_.slices[slice].band, work.tile);
          },
          [&](std::int32_t position, const BandSlice& part) {
            build_.records[position] = BandRecord{part};
          });
      return;
    }
    const IdRun run{build_.slice_ids, work.record_begin, work.record_end};
    for_each_in_order(
        shared_.order, run, slices.begin, slices.end,
        [&](std::int32_t position, std::int32_t slice) { write(work, position, slice); });
  }

  EmitShared& shared_;
  const DeviceBuild& build_;
  const TileGrid& grid_;
  TileCosts costs_;  ///< of the warp's tiles
};

}  // namespace magi
