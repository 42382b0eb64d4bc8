// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/worklist/device_backward_build.cuh"
#include "kernels/worklist/device_join.cuh"
#include "kernels/worklist/device_slice_order.cuh"

namespace magi {

struct KeyEmitShared {
  std::int32_t ids[kEmitWarps][kMostPlainParts];
  BandSlice parts[kEmitWarps][kMostPlainParts];
  SliceOrderShared order;
  std::int32_t max_cost;  ///< over the block's k tiles
  std::int32_t max_cost_inverse;
};
static_assert(kMostPlainParts <= kMostJoinedParts);

/// Writes the records of each k tile, their marks, and by what it is sorted. Few records are joined
/// by a warp. Those that cannot be joined, and many, stay as they are in the order of the slices.
class KeyRecordWriter {
 public:
  __device__ KeyRecordWriter(KeyEmitShared& shared, const BackwardBuild& build)
      : shared_(shared), build_(build), grid_(grid_of(build, build.header->tiling)) {}

  __device__ void run() {
    if (threadIdx.x == 0) {
      shared_.max_cost = 0;
      shared_.max_cost_inverse = 0;
    }
    __syncthreads();
    const std::int32_t stride = static_cast<std::int32_t>(gridDim.x) * kEmitWarps;
    const auto first = static_cast<std::int32_t>(blockIdx.x) * kEmitWarps;
#pragma unroll 1
    for (std::int32_t tile = first; tile < grid_.num_tiles; tile += stride) {
      const std::int32_t own = tile + warp_index();
      const bool has_many = own < grid_.num_tiles && num_records(own) > kMostPlainParts;
      if (own < grid_.num_tiles && !has_many) write_few(own);
      if (__syncthreads_or(has_many ? 1 : 0) == 0) continue;
#pragma unroll 1
      for (std::int32_t other = tile; other < min(tile + kEmitWarps, grid_.num_tiles); ++other) {
        if (num_records(other) > kMostPlainParts) write_many(other);
      }
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    atomicMax(&build_.header->max_cost, shared_.max_cost);
    atomicMax(&build_.header->max_cost_inverse, shared_.max_cost_inverse);
  }

 private:
  __device__ std::int32_t num_records(std::int32_t tile) const {
    return build_.works[tile].record_end - build_.works[tile].record_begin;
  }
  __device__ std::int32_t first_record(std::int32_t tile) const {
    return build_.works[tile].record_begin;
  }
  /// Steps as long as nothing is joined.
  __device__ std::int32_t cost_of_tally(std::int32_t tile) const {
    return clamped_cost(build_.tallies[build_.header->tiling][tile].num_k_tiles);
  }
  __device__ static std::int32_t clamped_cost(std::uint64_t steps) {
    return static_cast<std::int32_t>(steps < kMaxTileCost ? steps : kMaxTileCost);
  }

  __device__ void finish(std::int32_t tile, std::int32_t cost) const {
    const auto below = static_cast<std::uint64_t>(kMaxTileCost - cost);
    build_.sort_keys[0][tile] = below << 32 | static_cast<std::uint64_t>(tile);
    atomicMax(&shared_.max_cost, cost);
    atomicMax(&shared_.max_cost_inverse, kMaxTileCost - cost);
  }

  __device__ void write_few(std::int32_t tile) const {
    const std::int32_t count = num_records(tile);
    const std::int32_t begin = first_record(tile);
    std::int32_t* ids = shared_.ids[warp_index()];
    BandSlice* parts = shared_.parts[warp_index()];
#pragma unroll 1
    for (std::int32_t i = lane_index(); i < count; i += kWarpLanes) {
      ids[i] = build_.slice_ids[begin + i];
      parts[i] = part_of_tile(grid_, build_.slices[ids[i]].band, tile);
    }
    __syncwarp();
    const std::int32_t num_left = PartJoiner(parts, JoinAlong::Keys).join(count);
    const std::int32_t cost = num_left == 0 ? cost_of_tally(tile) : joined_cost(parts, num_left);
    if (num_left == 0) {
      write_in_order(tile, ids);
    } else {
      write_joined(tile, num_left);
    }
    if (lane_index() == 0) finish(tile, cost);
    __syncwarp();
  }

  __device__ std::int32_t joined_cost(const BandSlice* parts, std::int32_t count) const {
    unsigned steps = 0;
#pragma unroll 1
    for (std::int32_t i = lane_index(); i < count; i += kWarpLanes) {
      const Range tiles = tiles_of_part(parts[i], build_.token_shift);
      steps += static_cast<unsigned>(tiles.end - tiles.begin);
    }
    return clamped_cost(__reduce_add_sync(kFullWarp, steps));
  }

  __device__ void write_in_order(std::int32_t tile, const std::int32_t* ids) const {
    const std::int32_t count = num_records(tile);
#pragma unroll 1
    for (std::int32_t i = lane_index(); i < count; i += kWarpLanes) {
      std::int32_t rank = 0;
#pragma unroll 1
      for (std::int32_t j = 0; j < count; ++j) rank += ids[j] < ids[i] ? 1 : 0;
      write(tile, first_record(tile) + rank, part_of_tile(grid_, build_.slices[ids[i]].band, tile));
    }
  }

  __device__ void write_joined(std::int32_t tile, std::int32_t num_left) const {
    const std::int32_t count = num_records(tile);
#pragma unroll 1
    for (std::int32_t i = lane_index(); i < count; i += kWarpLanes) {
      const std::int32_t place = first_record(tile) + i;
      if (i < num_left) {
        write(tile, place, shared_.parts[warp_index()][i]);
      } else {
        build_.records[place] = KeyRecord{};
        build_.marks[place] = RecordMark{};
      }
    }
    __syncwarp();
    if (lane_index() == 0) build_.works[tile].record_end = first_record(tile) + num_left;
  }

  __device__ void write_many(std::int32_t tile) const {
    const TileTally tally = build_.tallies[build_.header->tiling][tile];
    const std::int32_t cost = cost_of_tally(tile);
    const KeyTile work = build_.works[tile];
    for_each_in_order(shared_.order, {build_.slice_ids, work.record_begin, work.record_end},
                      build_.source.count - tally.begin_inverse, tally.end_slice,
                      [&](std::int32_t place, std::int32_t slice) {
                        write(tile, place, part_of_tile(grid_, build_.slices[slice].band, tile));
                      });
    if (threadIdx.x == 0) finish(tile, cost);
  }

  __device__ void write(std::int32_t tile, std::int32_t place, const BandSlice& band) const {
    KeyRecord record;
    record.band = band;
    build_.records[place] = record;
    const Range tiles = tiles_of_part(band, build_.token_shift);
    RecordMark mark;
    mark.semaphore_begin = tiles.begin;
    mark.semaphore_end = tiles.end;
    mark.tile = tile;
    build_.marks[place] = mark;
    atomicMax(build_.row_ends + band.q0, band.q1);
    atomicMax(build_.group_ends + (band.q0 >> build_.groups.shift), band.q1);
  }

  KeyEmitShared& shared_;
  const BackwardBuild& build_;
  const KeyGrid grid_;
};

}  // namespace magi
