// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "cuda/ptx/order.cuh"
#include "kernels/schedule/device/device_list.hpp"

namespace magi {

inline constexpr unsigned kFullWarp = 0xffffffffu;
inline constexpr int kWarpLanes = 32;

/// How warps share slices: each warp takes several of many slices, and several warps share each of
/// few.
struct SliceTasks {
  std::int32_t slices_per_task = kWarpLanes;  ///< slices of a warp at once, one per lane
  std::int32_t num_parts = 1;                 ///< warps that share the tiles of a long slice
};

/// Arguments of every kernel of a build: shapes by value, parts of the workspace by address.
struct DeviceBuild {
  SliceArrays source;
  TileGrid grid;
  std::int32_t rows_k = 0;
  TileShape tile;
  SplitRule split;
  std::int32_t max_split_tiles = 0;
  std::int64_t record_capacity = 0;
  std::int64_t zeroed_chunks = 0;  ///< of 16 bytes, from the header on
  SliceTasks tasks;
  DeviceListHeader* header = nullptr;
  TileTally* tallies = nullptr;
  std::int32_t* group_records = nullptr;
  BandRecord* slices = nullptr;
  TileWork* placed = nullptr;
  TileWork* tiles = nullptr;
  TileWork* works = nullptr;
  SplitTile* split_tiles = nullptr;
  std::int32_t* begins = nullptr;
  std::uint64_t* sort_keys[2] = {};
  std::int32_t* bins = nullptr;  ///< null if there are none
  std::int32_t* slice_ids = nullptr;
  BandRecord* records = nullptr;
};

/// Lets the next kernel of a build start beside this one, and waits for the earlier ones.
__device__ __forceinline__ void begin_ahead() {
  ptx::launch_dependents();
  ptx::await_kernels_before();
}

__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x) % kWarpLanes; }
__device__ __forceinline__ int warp_index() { return static_cast<int>(threadIdx.x) / kWarpLanes; }

/// Adds the values of a warp to a sum in device memory.
__device__ __forceinline__ void add_of_warp(std::uint64_t& sum, std::int64_t value) {
#pragma unroll
  for (int lanes = kWarpLanes / 2; lanes > 0; lanes /= 2) {
    value += __shfl_xor_sync(kFullWarp, value, lanes);
  }
  if (lane_index() != 0 || value == 0) return;
  atomicAdd(reinterpret_cast<unsigned long long*>(&sum), static_cast<unsigned long long>(value));
}

struct Sum {
  template <typename Value>
  __device__ __forceinline__ Value operator()(Value a, Value b) const {
    return a + b;
  }
};
struct Largest {
  template <typename Value>
  __device__ __forceinline__ Value operator()(Value a, Value b) const {
    return a > b ? a : b;
  }
};

template <typename Value, int kThreads>
struct ScanStorage {
  Value of_warps[kThreads / kWarpLanes];
};

template <typename Value>
struct ScannedBlock {
  Value before;  ///< over the threads before this one
  Value total;   ///< of all
};

/// Combines the values of the lanes up to this one.
template <typename Value, typename Combine>
__device__ __forceinline__ Value scan_warp(Value value, Combine combine) {
#pragma unroll
  for (int lanes = 1; lanes < kWarpLanes; lanes *= 2) {
    const Value other = __shfl_up_sync(kFullWarp, value, static_cast<unsigned>(lanes));
    if (lane_index() >= lanes) value = combine(other, value);
  }
  return value;
}

/// Combines the values of a block in the order of its threads, `identity` changing nothing. All
/// kThreads threads call; `storage` may be used again at once. Little code: see for_each_part.
template <int kThreads, typename Value, typename Combine = Sum>
__device__ __forceinline__ ScannedBlock<Value> scan_block(Value value,
                                                          ScanStorage<Value, kThreads>& storage,
                                                          Value identity = Value{},
                                                          Combine combine = {}) {
  constexpr int kWarps = kThreads / kWarpLanes;
  const Value up_to = scan_warp(value, combine);
  if (lane_index() == kWarpLanes - 1) storage.of_warps[warp_index()] = up_to;
  __syncthreads();
  Value of_warps = lane_index() < kWarps ? storage.of_warps[lane_index()] : identity;
  of_warps = scan_warp(of_warps, combine);
  ScannedBlock<Value> scan;
  scan.total = __shfl_sync(kFullWarp, of_warps, kWarpLanes - 1);
  const Value warps_before = __shfl_sync(kFullWarp, of_warps, max(warp_index() - 1, 0));
  const Value lanes_before = __shfl_up_sync(kFullWarp, up_to, 1u);
  scan.before = warp_index() == 0 ? identity : warps_before;
  if (lane_index() > 0) scan.before = combine(scan.before, lanes_before);
  __syncthreads();
  return scan;
}

__device__ __forceinline__ BandSlice shuffle_band(const BandSlice& band, int lane) {
  return {__shfl_sync(kFullWarp, band.q0, lane),    __shfl_sync(kFullWarp, band.q1, lane),
          __shfl_sync(kFullWarp, band.k0, lane),    __shfl_sync(kFullWarp, band.k1, lane),
          __shfl_sync(kFullWarp, band.d_min, lane), __shfl_sync(kFullWarp, band.d_max, lane)};
}

/// Spreads the slices, which reach up to `max_tiles`, over about `warps` warps.
inline SliceTasks share_slices(std::int64_t num_slices, std::int64_t warps,
                               std::int64_t max_tiles) {
  const std::int64_t per_task = std::clamp<std::int64_t>(num_slices / warps, 1, kWarpLanes);
  const std::int64_t groups = (num_slices + per_task - 1) / per_task;
  // No more warps on a slice than it can have runs of 32 tiles.
  const std::int64_t longest = (max_tiles + kWarpLanes - 1) / kWarpLanes;
  const std::int64_t parts = std::clamp<std::int64_t>(warps / std::max<std::int64_t>(groups, 1), 1,
                                                      std::max<std::int64_t>(longest, 1));
  return {static_cast<std::int32_t>(per_task), static_cast<std::int32_t>(parts)};
}

/// Tasks of a warp-wide walk over the slices: one per slices_per_task slices and part. They fit 32
/// bits, in which the device divides much faster.
MAGI_HOST_DEVICE std::int32_t num_slice_tasks(const SliceTasks& tasks, std::int32_t num_slices) {
  const std::int32_t groups =
      num_slices / tasks.slices_per_task + (num_slices % tasks.slices_per_task != 0 ? 1 : 0);
  return groups * tasks.num_parts;
}

/// Calls visit(tile, part, slice) for every tile that sees a key of one of the warp's slices
/// [first_slice, first_slice + slices_per_task), one per lane. A lane takes a slice of few tiles
/// alone; the warp, and `num_parts` warps, share longer ones. The code of visit occurs here once,
/// since a short list runs it about once.
template <typename Grid, typename Visit>
__device__ __forceinline__ void for_each_part(const SliceTasks& tasks, const Grid& grid,
                                              std::int32_t task, const BandSlice& own,
                                              Visit visit) {
  // A lane that takes more tiles than the warp has slices holds up the others.
  const std::int32_t few_tiles = min(4, tasks.slices_per_task);
  const std::int32_t part_index = task % tasks.num_parts;
  const std::int32_t first_slice = task / tasks.num_parts * tasks.slices_per_task;
  BandSlice band = own;
  Range tiles = reached_tiles(grid, own);
  std::int32_t slice = first_slice + lane_index();
  std::int32_t stride = 1;
  const bool is_long = tiles.end - tiles.begin > few_tiles;
  unsigned left = __ballot_sync(kFullWarp, is_long);
  const Range all = tiles;
  if (is_long || part_index != 0) tiles.end = tiles.begin;
  while (true) {
#pragma unroll 1
    for (std::int32_t tile = tiles.begin; tile < tiles.end; tile += stride) {
      const BandSlice part = part_of_tile(grid, band, tile);
      if (part.q0 < part.q1) visit(tile, part, slice);
    }
    if (left == 0) break;
    const int lane = __ffs(static_cast<int>(left)) - 1;
    left &= left - 1;
    band = shuffle_band(own, lane);
    slice = first_slice + lane;
    tiles.begin = __shfl_sync(kFullWarp, all.begin, lane) + part_index * kWarpLanes + lane_index();
    tiles.end = __shfl_sync(kFullWarp, all.end, lane);
    stride = tasks.num_parts * kWarpLanes;
  }
}

__device__ __forceinline__ std::int32_t first_task() {
  return static_cast<std::int32_t>(blockIdx.x * (blockDim.x / kWarpLanes)) + warp_index();
}
__device__ __forceinline__ std::int32_t task_stride() {
  return static_cast<std::int32_t>(gridDim.x * (blockDim.x / kWarpLanes));
}
/// The lane's slice of a task; the number of slices if it has none.
__device__ __forceinline__ std::int32_t slice_of_task(const SliceTasks& tasks, std::int32_t task,
                                                      std::int32_t num_slices) {
  const std::int32_t first = task / tasks.num_parts * tasks.slices_per_task;
  const bool has_slice = lane_index() < min(num_slices - first, tasks.slices_per_task);
  return has_slice ? first + lane_index() : num_slices;
}

/// Clears block number `block`'s share of chunks of 16 bytes, of `num_blocks` blocks.
__device__ __forceinline__ void clear_chunks(void* begin, std::int64_t count, unsigned block,
                                             unsigned num_blocks) {
  auto* chunks = static_cast<uint4*>(begin);
  const std::int64_t stride = std::int64_t{num_blocks} * blockDim.x;
#pragma unroll 1
  for (std::int64_t i = std::int64_t{block} * blockDim.x + threadIdx.x; i < count; i += stride) {
    chunks[i] = uint4{};
  }
}

/// The sums that slices add to: tallies of tiles, sums of their groups, and the tiles' bins.
/// Without bins only tallies.
struct TallyPlaces {
  TileTally* tallies;
  std::int32_t* group_records;
  std::int32_t* bins;
};

/// Adds `more`, the tally of one slice's part, to the tile's.
__device__ __forceinline__ void add_tally(const TallyPlaces& places, std::int32_t tile,
                                          const TileTally& more) {
  TileTally& tally = places.tallies[tile];
  const std::int32_t place = atomicAdd(&tally.num_records, more.num_records);
  atomicAdd(reinterpret_cast<unsigned long long*>(&tally.num_k_tiles),
            static_cast<unsigned long long>(more.num_k_tiles));
  atomicMax(&tally.end_slice, more.end_slice);
  atomicMax(&tally.begin_inverse, more.begin_inverse);
  if (places.bins == nullptr) return;
  atomicAdd(&places.group_records[tile / kGroupTiles], more.num_records);
  if (place < kBinSlices) {
    places.bins[static_cast<std::int64_t>(tile) * kBinSlices + place] = more.end_slice - 1;
  }
}

/// Numbers of records of the tiles before one, and of all tiles.
struct RecordSums {
  std::int32_t before;
  std::int32_t total;
};

/// Adds up the records of few tiles: one warp per tile, in one trip to memory.
__device__ __forceinline__ RecordSums sum_records(const TallyPlaces& places, std::int32_t num_tiles,
                                                  std::int32_t tile) {
  const std::int32_t group = tile / kGroupTiles;
  const std::int32_t other = group * kGroupTiles + lane_index();
  const std::int32_t of_group =
      other < min(tile, num_tiles) ? places.tallies[other].num_records : 0;
  std::int32_t before = of_group;
  std::int32_t total = 0;
#pragma unroll
  for (std::int32_t first = 0; first < kMostTileGroups; first += kWarpLanes) {
    const std::int32_t i = first + lane_index();
    const std::int32_t records = i * kGroupTiles < num_tiles ? places.group_records[i] : 0;
    before += i < group ? records : 0;
    total += records;
  }
  // Not above the product of kMostRankedKeys and kMostBinnedSlices.
  return {static_cast<std::int32_t>(__reduce_add_sync(kFullWarp, static_cast<unsigned>(before))),
          static_cast<std::int32_t>(__reduce_add_sync(kFullWarp, static_cast<unsigned>(total)))};
}
static_assert(kGroupTiles == kWarpLanes);

/// The cost of a tile before records are joined.
__device__ __forceinline__ std::int32_t price_tile(const DeviceBuild& build, std::int32_t tile) {
  const TileTally tally = build.tallies[tile];
  BandSlice last;
  if (tally.end_slice > 0) {  // filling counts the number of records down
    last = part_of_tile(build.grid, build.slices[tally.end_slice - 1].band, tile);
  }
  return cost_of_tally(build.grid, build.tile, tile, tally, last);
}

/// Reports the number of records that the list needs.
__device__ __forceinline__ void report_records(const DeviceBuild& build,
                                               std::uint64_t num_records) {
  DeviceListHeader& header = *build.header;
  header.num_records = num_records;
  header.is_overflowing = static_cast<std::int64_t>(num_records) > build.record_capacity ? 1 : 0;
  header.outcome.packed_heads = build.grid.packed_heads;
  header.outcome.head_groups = build.grid.head_groups;
}

/// Stores a slice, and the word of the first bad one.
__device__ __forceinline__ void keep_slice(BandRecord* slices, std::uint64_t& bad_slice,
                                           std::int32_t slice, const CheckedSlice& checked) {
  BandRecord record;
  record.band = checked.band;
  slices[slice] = record;
  const std::uint64_t word = bad_slice_word(slice, checked.bad_field);
  if (word == 0) return;
  atomicMax(reinterpret_cast<unsigned long long*>(&bad_slice),
            static_cast<unsigned long long>(word));
}

}  // namespace magi
