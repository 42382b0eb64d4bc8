// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/schedule/device/device_backward_build.cuh"
#include "kernels/schedule/device/device_join.cuh"
#include "kernels/schedule/device/device_slice_order.cuh"

namespace magi {

/// Up to so many k tiles, neighbours are the work of different multiprocessors; more are so many
/// for each that neighbours, which read the same, are better together.
inline constexpr std::int32_t kMostSpreadTiles = 1024;

struct KeyEmitShared {
  std::int32_t ids[kEmitWarps][kMostPlainParts];
  BandSlice parts[kEmitWarps][kMostPlainParts];
  SliceOrderShared order;
  std::int32_t max_cost;  ///< over the block's k tiles
  std::int32_t max_cost_inverse;
  unsigned num_wide;
  unsigned long long wide_steps;
  std::int32_t longest_narrow;
};
static_assert(kMostPlainParts <= kMostJoinedParts);

/// Chooses how to cut the keys and places the records of each k tile, unless that is done. Writes
/// the records, their marks, and the sort key of the k tile. A warp joins few records. Many, and
/// those that cannot be joined, stay in the order of the slices.
class KeyRecordWriter {
 public:
  __device__ KeyRecordWriter(KeyEmitShared& shared, const BackwardBuild& build)
      : shared_(shared),
        build_(build),
        tiling_(has_bins(build) ? cheaper_tiling(build) : build.header->tiling),
        grid_(grid_of(build, tiling_)) {}

  __device__ void run() {
    if (!is_fitting()) return;
    if (threadIdx.x == 0) {
      shared_.max_cost = 0;
      shared_.max_cost_inverse = 0;
      shared_.num_wide = 0;
      shared_.wide_steps = 0;
      shared_.longest_narrow = 0;
    }
    __syncthreads();
    const bool is_spread = grid_.num_tiles <= kMostSpreadTiles;
    const std::int32_t apart = is_spread ? static_cast<std::int32_t>(gridDim.x) : 1;
    const auto first = static_cast<std::int32_t>(blockIdx.x) * (is_spread ? 1 : kEmitWarps);
#pragma unroll 1
    for (std::int32_t tile = first; tile < grid_.num_tiles;
         tile += static_cast<std::int32_t>(gridDim.x) * kEmitWarps) {
      const std::int32_t own = tile + warp_index() * apart;
      const KeyTile work = has_bins(build_) ? place(own) : placed(own);
      const bool has_many = num_records(work) > kMostPlainParts;
      if (own < grid_.num_tiles && !has_many) write_few(own, work);
      if (__syncthreads_or(has_many ? 1 : 0) == 0) continue;
#pragma unroll 1
      for (int warp = 0; warp < kEmitWarps; ++warp) {
        const std::int32_t other = tile + warp * apart;
        const KeyTile many = placed(other);
        if (num_records(many) > kMostPlainParts) write_many(other, many);
      }
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    atomicMax(&build_.header->max_cost, shared_.max_cost);
    atomicMax(&build_.header->max_cost_inverse, shared_.max_cost_inverse);
    atomicMax(&build_.header->longest_narrow, shared_.longest_narrow);
    if (shared_.num_wide == 0) return;
    atomicAdd(&build_.header->num_wide, shared_.num_wide);
    atomicAdd(reinterpret_cast<unsigned long long*>(&build_.header->wide_steps),
              shared_.wide_steps);
  }

 private:
  /// Whether all records have room; also reports their number, unless that is done.
  __device__ bool is_fitting() const {
    if (!has_bins(build_)) return build_.header->outcome.is_overflowing == 0;
    const std::int32_t num_records = sum_records(tallies(), grid_.num_tiles, 0).total;
    if (first_task() == 0 && lane_index() == 0) report_tiling(build_, tiling_, num_records);
    return num_records <= build_.record_capacity;
  }

  __device__ const TallyPlaces& tallies() const { return build_.tallies[tiling_]; }

  __device__ KeyTile placed(std::int32_t tile) const {
    return tile < grid_.num_tiles ? build_.works[tile] : KeyTile{};
  }
  /// Makes the work of a k tile, whose records follow those of the k tiles before it.
  __device__ KeyTile place(std::int32_t tile) const {
    KeyTile work;
    if (tile >= grid_.num_tiles) return work;
    const Range keys = keys_of_tile(grid_, tile);
    work.key_begin = keys.begin;
    work.key_end = keys.end;
    work.record_begin = sum_records(tallies(), grid_.num_tiles, tile).before;
    work.record_end = work.record_begin + tallies().tallies[tile].num_records;
    if (lane_index() == 0) build_.works[tile] = work;
    return work;
  }

  __device__ static std::int32_t num_records(const KeyTile& work) {
    return work.record_end - work.record_begin;
  }
  /// Steps before records are joined.
  __device__ std::int32_t cost_of_tally(std::int32_t tile) const {
    return clamped_cost(tallies().tallies[tile].num_k_tiles);
  }
  __device__ static std::int32_t clamped_cost(std::uint64_t steps) {
    return static_cast<std::int32_t>(steps < kMaxTileCost ? steps : kMaxTileCost);
  }

  __device__ void finish(std::int32_t tile, std::int32_t cost) const {
    const auto below = static_cast<std::uint64_t>(kMaxTileCost - cost);
    build_.sort_keys[0][tile] = below << 32 | static_cast<std::uint64_t>(tile);
    atomicMax(&shared_.max_cost, cost);
    atomicMax(&shared_.max_cost_inverse, kMaxTileCost - cost);
    if (is_plain_wide(build_.rule, cost)) {
      atomicAdd(&shared_.num_wide, 1u);
      atomicAdd(&shared_.wide_steps, static_cast<unsigned long long>(cost));
    } else {
      atomicMax(&shared_.longest_narrow, cost);
    }
  }

  __device__ void write_few(std::int32_t tile, const KeyTile& work) const {
    const std::int32_t count = num_records(work);
    const std::int32_t* found = has_bins(build_) ? tallies().bins + std::int64_t{tile} * kBinSlices
                                                 : build_.slice_ids + work.record_begin;
    std::int32_t* ids = shared_.ids[warp_index()];
    BandSlice* parts = shared_.parts[warp_index()];
#pragma unroll 1
    for (std::int32_t i = lane_index(); i < count; i += kWarpLanes) {
      ids[i] = found[i];
      parts[i] = part_of_tile(grid_, build_.slices[ids[i]].band, tile);
    }
    __syncwarp();
    const std::int32_t num_left = PartJoiner(parts, JoinAlong::Keys).join(count);
    const std::int32_t cost = num_left == 0 ? cost_of_tally(tile) : joined_cost(parts, num_left);
    if (num_left == 0) {
      write_in_order(tile, work, ids);
    } else {
      write_joined(tile, work, num_left);
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

  __device__ void write_in_order(std::int32_t tile, const KeyTile& work,
                                 const std::int32_t* ids) const {
    const std::int32_t count = num_records(work);
#pragma unroll 1
    for (std::int32_t i = lane_index(); i < count; i += kWarpLanes) {
      std::int32_t rank = 0;
#pragma unroll 4
      for (std::int32_t j = 0; j < count; ++j) rank += ids[j] < ids[i] ? 1 : 0;
      write(tile, work.record_begin + rank, part_of_tile(grid_, build_.slices[ids[i]].band, tile));
    }
  }

  __device__ void write_joined(std::int32_t tile, const KeyTile& work,
                               std::int32_t num_left) const {
    const std::int32_t count = num_records(work);
#pragma unroll 1
    for (std::int32_t i = lane_index(); i < count; i += kWarpLanes) {
      const std::int32_t place = work.record_begin + i;
      if (i < num_left) {
        write(tile, place, shared_.parts[warp_index()][i]);
      } else {
        build_.records[place] = KeyRecord{};
        build_.marks[place] = RecordMark{};
      }
    }
    __syncwarp();
    if (lane_index() == 0) build_.works[tile].record_end = work.record_begin + num_left;
  }

  __device__ void write_many(std::int32_t tile, const KeyTile& work) const {
    const TileTally tally = tallies().tallies[tile];
    const std::int32_t cost = cost_of_tally(tile);
    const Range slices{build_.source.count - tally.begin_inverse, tally.end_slice};
    const auto part_of = [&](std::int32_t slice) {
      return part_of_tile(grid_, build_.slices[slice].band, tile);
    };
    if (has_bins(build_)) {
      for_each_found(shared_.order, slices, work.record_begin, part_of,
                     [&](std::int32_t place, const BandSlice& part) { write(tile, place, part); });
    } else {
      for_each_in_order(shared_.order, {build_.slice_ids, work.record_begin, work.record_end},
                        slices.begin, slices.end, [&](std::int32_t place, std::int32_t slice) {
                          write(tile, place, part_of(slice));
                        });
    }
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
    mark_seen(build_.seen_keys, band.k0, band.k1);
    atomicMax(build_.row_ends + band.q0, band.q1);
    atomicMax(build_.group_ends + (band.q0 >> build_.groups.shift), band.q1);
  }

  KeyEmitShared& shared_;
  const BackwardBuild& build_;
  const int tiling_;
  const KeyGrid grid_;
};

}  // namespace magi
