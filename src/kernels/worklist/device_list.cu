// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cub/warp/warp_reduce.cuh>

#include "cuda/arena.hpp"
#include "cuda/check.hpp"
#include "kernels/worklist/device_emit.cuh"
#include "kernels/worklist/device_order.cuh"
#include "kernels/worklist/device_split.cuh"

namespace magi {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxBlocks = 2048;
constexpr std::int64_t kWalkingWarps = 8192;  ///< enough to keep every multiprocessor at work

__device__ void add_tally(TileTally& tally, const TileTally& more) {
  atomicAdd(reinterpret_cast<unsigned long long*>(&tally.num_k_tiles),
            static_cast<unsigned long long>(more.num_k_tiles));
  atomicAdd(&tally.num_records, more.num_records);
  atomicMax(&tally.end_slice, more.end_slice);
  atomicMax(&tally.begin_inverse, more.begin_inverse);
}

__device__ void keep_slice(const DeviceBuild& build, std::int32_t slice,
                           const CheckedSlice& checked) {
  BandRecord record;
  record.band = checked.band;
  build.slices[slice] = record;
  const std::uint64_t word = bad_slice_word(slice, checked.bad_field);
  if (word == 0) return;
  atomicMax(reinterpret_cast<unsigned long long*>(&build.header->bad_slice),
            static_cast<unsigned long long>(word));
}

__global__ void __launch_bounds__(kThreads)
    count_kernel(const __grid_constant__ DeviceBuild build) {
  const TileGrid& grid = build.grids[blockIdx.y];
  const std::int64_t end = num_slice_tasks(build);
  for (std::int64_t task = first_task(); task < end; task += task_stride()) {
    const std::int32_t slice = slice_of_task(build, task);
    CheckedSlice checked;
    checked.band = BandSlice{};
    if (slice < build.source.count) {
      checked = read_slice(build.source, slice, grid.rows_q, build.rows_k);
      const bool is_first_visit = blockIdx.y == 0 && task % build.num_parts == 0;
      if (is_first_visit) keep_slice(build, slice, checked);
    }
    for_each_part(
        build, grid, task, checked.band,
        [&](std::int32_t tile, const BandSlice& part, std::int32_t index) {
          add_tally(build.tallies[grid.first_tally + tile],
                    tally_of_part(grid, part, tile, build.tile.keys, index, build.source.count));
        });
  }
}

__global__ void __launch_bounds__(kThreads) cost_kernel(const __grid_constant__ DeviceBuild build) {
  const TileGrid& grid = build.grids[blockIdx.y];
  std::uint64_t sum = 0;
  const auto stride = static_cast<std::int32_t>(gridDim.x * blockDim.x);
  for (auto tile = static_cast<std::int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
       tile < grid.num_tiles; tile += stride) {
    const TileTally tally = build.tallies[grid.first_tally + tile];
    BandSlice last;
    if (tally.num_records > 0) {
      last = part_of_tile(grid, build.slices[tally.end_slice - 1].band, tile);
    }
    const std::int32_t cost = cost_of_tally(grid, build.tile, tile, tally, last);
    build.costs[grid.first_tally + tile] = cost;
    sum += static_cast<std::uint64_t>(cost);
  }
  using SumOfWarp = cub::WarpReduce<std::uint64_t>;
  __shared__ typename SumOfWarp::TempStorage storage[kThreads / kWarpLanes];
  sum = SumOfWarp(storage[warp_index()]).Sum(sum);
  if (lane_index() != 0) return;
  atomicAdd(reinterpret_cast<unsigned long long*>(&build.header->tile_costs[blockIdx.y]),
            static_cast<unsigned long long>(sum));
}

__global__ void __cluster_dims__(kOrderCtas) __launch_bounds__(kOrderThreads)
    place_kernel(const __grid_constant__ DeviceBuild build) {
  __shared__ PlaceShared shared;
  RecordPlacer(shared, build).run();
}

__global__ void __cluster_dims__(kOrderCtas) __launch_bounds__(kOrderThreads)
    sort_kernel(const __grid_constant__ DeviceBuild build) {
  __shared__ SortShared shared;
  TileSorter(shared, build).run();
}

__global__ void __launch_bounds__(kThreads) fill_kernel(const __grid_constant__ DeviceBuild build) {
  const TileGrid& grid = build.grids[build.header->packing];
  const std::int64_t end = num_slice_tasks(build);
  for (std::int64_t task = first_task(); task < end; task += task_stride()) {
    const std::int32_t slice = slice_of_task(build, task);
    const BandSlice band = slice < build.source.count ? build.slices[slice].band : BandSlice{};
    for_each_part(build, grid, task, band,
                  [&](std::int32_t tile, const BandSlice&, std::int32_t index) {
                    const std::int32_t begin = build.begins[tile];
                    if (begin == kNotStored) return;
                    TileTally& tally = build.tallies[grid.first_tally + tile];
                    build.slice_ids[begin + atomicSub(&tally.num_records, 1) - 1] = index;
                  });
  }
}

__global__ void __launch_bounds__(kEmitThreads)
    emit_kernel(const __grid_constant__ DeviceBuild build) {
  __shared__ EmitShared shared;
  RecordWriter(shared, build).run();
}

__global__ void __launch_bounds__(kSplitThreads)
    split_kernel(const __grid_constant__ DeviceBuild build) {
  __shared__ SplitShared shared;
  TileSplitter(shared, build).run();
}

/// Spreads the slices over enough warps: several slices to a warp where there are many, several
/// warps to a slice where there are few. Returns the number of tasks.
std::int64_t share_slices(DeviceBuild& build, std::int32_t max_tiles) {
  const std::int64_t count = build.source.count;
  const std::int64_t warps = kWalkingWarps / build.num_grids;
  const std::int64_t per_task = std::clamp<std::int64_t>(count / warps, 1, kWarpLanes);
  const std::int64_t groups = (count + per_task - 1) / per_task;
  // No more warps on a slice than it can have runs of 32 tiles.
  const std::int64_t longest = (std::int64_t{max_tiles} + kWarpLanes - 1) / kWarpLanes;
  const std::int64_t parts =
      std::clamp<std::int64_t>(warps / std::max<std::int64_t>(groups, 1), 1, longest);
  build.slices_per_task = static_cast<std::int32_t>(per_task);
  build.num_parts = static_cast<std::int32_t>(parts);
  return groups * parts;
}

unsigned num_blocks(std::int64_t units, std::int64_t units_per_block) {
  const std::int64_t blocks = (units + units_per_block - 1) / units_per_block;
  return static_cast<unsigned>(std::clamp<std::int64_t>(blocks, 1, kMaxBlocks));
}

}  // namespace

DeviceBuild make_device_build(const DeviceListShape& shape, const DeviceListLayout& layout,
                              const SliceArrays& slices, void* workspace) {
  DeviceBuild build;
  build.source = slices;
  std::copy(layout.grids.begin(), layout.grids.end(), build.grids);
  build.num_grids = static_cast<std::int32_t>(layout.grids.size());
  build.rows_k = shape.problem.rows_k;
  build.tile = shape.tile;
  build.split = shape.split;
  build.record_capacity = shape.record_capacity;
  build.header = part_at<DeviceListHeader>(workspace, 0);
  build.tallies = part_at<TileTally>(workspace, layout.tallies);
  build.costs = part_at<std::int32_t>(workspace, layout.costs);
  build.slices = part_at<BandRecord>(workspace, layout.slices);
  build.tiles = part_at<TileWork>(workspace, layout.tiles);
  build.works = part_at<TileWork>(workspace, layout.works);
  build.split_tiles = part_at<SplitTile>(workspace, layout.split_tiles);
  build.begins = part_at<std::int32_t>(workspace, layout.begins);
  build.sort_keys[0] = part_at<std::uint64_t>(workspace, layout.sort_keys);
  build.sort_keys[1] = build.sort_keys[0] + layout.max_tiles;
  build.slice_ids = part_at<std::int32_t>(workspace, layout.slice_ids);
  build.records = part_at<BandRecord>(workspace, layout.records);
  return build;
}

void sort_tiles(const DeviceBuild& build, cudaStream_t stream) {
  sort_kernel<<<kOrderCtas, kOrderThreads, 0, stream>>>(build);
  cuda_check(cudaGetLastError(), "sort_kernel");
}

void build_device_list(const DeviceListShape& shape, const DeviceListLayout& layout,
                       const SliceArrays& slices, void* workspace, cudaStream_t stream) {
  DeviceBuild build = make_device_build(shape, layout, slices, workspace);
  const auto candidates = static_cast<unsigned>(build.num_grids);
  const std::int64_t num_tasks = share_slices(build, layout.max_tiles);
  const unsigned walk_blocks = num_blocks(num_tasks, kThreads / kWarpLanes);
  cuda_check(cudaMemsetAsync(workspace, 0, layout.zeroed_bytes, stream), "cudaMemsetAsync");
  if (num_tasks > 0) {
    count_kernel<<<dim3(walk_blocks, candidates), kThreads, 0, stream>>>(build);
    cuda_check(cudaGetLastError(), "count_kernel");
  }
  const unsigned tile_blocks = num_blocks(layout.max_tiles, kThreads);
  cost_kernel<<<dim3(tile_blocks, candidates), kThreads, 0, stream>>>(build);
  cuda_check(cudaGetLastError(), "cost_kernel");
  place_kernel<<<kOrderCtas, kOrderThreads, 0, stream>>>(build);
  cuda_check(cudaGetLastError(), "place_kernel");
  if (num_tasks > 0) {
    fill_kernel<<<walk_blocks, kThreads, 0, stream>>>(build);
    cuda_check(cudaGetLastError(), "fill_kernel");
  }
  emit_kernel<<<num_blocks(layout.max_tiles, kEmitWarps), kEmitThreads, 0, stream>>>(build);
  cuda_check(cudaGetLastError(), "emit_kernel");
  sort_tiles(build, stream);
  // A block for each tile that may be cut: its records are walked by one.
  const unsigned split_blocks =
      std::max(num_blocks(layout.max_tiles, kSplitThreads), num_blocks(layout.max_split_tiles, 1));
  split_kernel<<<split_blocks, kSplitThreads, 0, stream>>>(build);
  cuda_check(cudaGetLastError(), "split_kernel");
}

}  // namespace magi
