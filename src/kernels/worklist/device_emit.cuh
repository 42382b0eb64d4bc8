// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/worklist/device_build.cuh"
#include "kernels/worklist/device_join.cuh"
#include "kernels/worklist/device_slice_order.cuh"

namespace magi {

inline constexpr std::int32_t kFewRecords = kMostJoinedParts;  ///< written by one warp

struct EmitShared {
  std::int32_t ids[kEmitWarps][kFewRecords];
  BandSlice parts[kEmitWarps][kFewRecords];
  SliceOrderShared order;
  std::uint64_t cost;     ///< sum over the block's tiles
  std::int32_t max_cost;  ///< of them
  std::int32_t max_cost_inverse;
};

/// Writes the records of each tile, and by what it is sorted. Few records are joined by a warp.
/// Those that cannot be joined, and many, stay as they are in the order of the slices: few are
/// ranked by counting the smaller ones; many are marked in a bit map, window by window, and read
/// back in order.
class RecordWriter {
 public:
  __device__ RecordWriter(EmitShared& shared, const DeviceBuild& build)
      : shared_(shared), build_(build), grid_(build.grid) {}

  __device__ void run() {
    if (threadIdx.x == 0) {
      shared_.cost = 0;
      shared_.max_cost = 0;
      shared_.max_cost_inverse = 0;
    }
    __syncthreads();
    const std::int32_t stride = static_cast<std::int32_t>(gridDim.x) * kEmitWarps;
    const auto first = static_cast<std::int32_t>(blockIdx.x) * kEmitWarps;
#pragma unroll 1
    for (std::int32_t tile = first; tile < grid_.num_tiles; tile += stride) {
      const std::int32_t own = tile + warp_index();
      const bool has_few = num_stored(work_at(own)) <= kFewRecords;
      if (own < grid_.num_tiles) finish(has_few ? write_few(work_at(own)) : work_at(own));
      if (__syncthreads_or(has_few ? 0 : 1) == 0) continue;
#pragma unroll 1
      for (std::int32_t other = tile; other < tile + kEmitWarps; ++other) {
        const TileWork work = work_at(other);
        if (num_stored(work) > kFewRecords) write_many(work);
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) report();
  }

 private:
  __device__ TileWork work_at(std::int32_t tile) const {
    return tile < grid_.num_tiles ? build_.works[tile] : TileWork{};
  }

  __device__ static std::int32_t num_stored(const TileWork& work) {
    return work.record_begin < 0 ? 0 : work.record_end - work.record_begin;
  }

  __device__ void report() const {
    DeviceListHeader& header = *build_.header;
    atomicAdd(reinterpret_cast<unsigned long long*>(&header.list_cost),
              static_cast<unsigned long long>(shared_.cost));
    atomicMax(&header.max_cost, shared_.max_cost);
    atomicMax(&header.max_cost_inverse, shared_.max_cost_inverse);
  }

  /// Tells of the tile whose records are known.
  __device__ void finish(const TileWork& work) const {
    if (lane_index() != 0) return;
    const auto below = static_cast<std::uint64_t>(kMaxTileCost - work.cost);
    build_.sort_keys[0][work.tile] = below << 32 | static_cast<std::uint64_t>(work.tile);
    atomicAdd(reinterpret_cast<unsigned long long*>(&shared_.cost),
              static_cast<unsigned long long>(work.cost));
    atomicMax(&shared_.max_cost, work.cost);
    atomicMax(&shared_.max_cost_inverse, kMaxTileCost - work.cost);
  }

  /// Writes the records of a tile, joined, and returns its work.
  __device__ TileWork write_few(TileWork work) const {
    const std::int32_t count = num_stored(work);
    if (count == 0) return work;
    std::int32_t* ids = shared_.ids[warp_index()];
    BandSlice* parts = shared_.parts[warp_index()];
#pragma unroll 1
    for (std::int32_t i = lane_index(); i < count; i += kWarpLanes) {
      ids[i] = build_.slice_ids[work.record_begin + i];
      parts[i] = part_of_tile(grid_, build_.slices[ids[i]].band, work.tile);
    }
    __syncwarp();
    const std::int32_t num_left = PartJoiner(parts, JoinAlong::Queries).join(count);
    if (num_left == 0) {
      write_in_order(work, ids);
    } else {
      write_joined(work, num_left);
      price(work, num_left);
    }
    __syncwarp();
    return work;
  }

  __device__ void write_in_order(const TileWork& work, const std::int32_t* ids) const {
    const std::int32_t count = num_stored(work);
#pragma unroll 1
    for (std::int32_t i = lane_index(); i < count; i += kWarpLanes) {
      std::int32_t rank = 0;
#pragma unroll 1
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

  /// Prices a tile anew, whose `count` records have been joined.
  __device__ void price(TileWork& work, std::int32_t count) const {
    const BandSlice* parts = shared_.parts[warp_index()];
    const Range rows = rows_of_tile(grid_, work.tile);
    std::int32_t num_k_tiles = 0;
#pragma unroll 1
    for (std::int32_t i = lane_index(); i < count; i += kWarpLanes) {
      num_k_tiles += tile_run(parts[i], rows.begin, rows.end, build_.tile.keys).num_tiles;
    }
    num_k_tiles =
        static_cast<std::int32_t>(__reduce_add_sync(kFullWarp, static_cast<unsigned>(num_k_tiles)));
    TileTally tally;
    tally.num_k_tiles = static_cast<std::uint64_t>(num_k_tiles);
    work.record_end = work.record_begin + count;
    work.cost = cost_of_tally(grid_, build_.tile, work.tile, tally, parts[count - 1]);
    if (lane_index() != 0) return;
    build_.tallies[work.tile].num_k_tiles = tally.num_k_tiles;
    build_.works[work.tile] = work;
  }

  __device__ void write(const TileWork& work, std::int32_t position, std::int32_t slice) const {
    BandRecord record;
    record.band = part_of_tile(grid_, build_.slices[slice].band, work.tile);
    build_.records[position] = record;
  }

  __device__ void write_many(const TileWork& work) const {
    const TileTally tally = build_.tallies[work.tile];
    const IdRun run{build_.slice_ids, work.record_begin, work.record_end};
    for_each_in_order(
        shared_.order, run, build_.source.count - tally.begin_inverse, tally.end_slice,
        [&](std::int32_t position, std::int32_t slice) { write(work, position, slice); });
  }

  EmitShared& shared_;
  const DeviceBuild& build_;
  const TileGrid& grid_;
};

}  // namespace magi
