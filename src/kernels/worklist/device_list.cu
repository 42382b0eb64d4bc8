// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cub/warp/warp_reduce.cuh>

#include "cuda/arena.hpp"
#include "cuda/check.hpp"
#include "cuda/launch.cuh"
#include "kernels/worklist/device_emit.cuh"
#include "kernels/worklist/device_order.cuh"
#include "kernels/worklist/device_split.cuh"

namespace magi {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxBlocks = 2048;
constexpr std::int64_t kWalkingWarps = 8192;  ///< enough to keep every multiprocessor at work

__global__ void __launch_bounds__(kThreads)
    count_kernel(const __grid_constant__ DeviceBuild build) {
  begin_ahead();
  const TileGrid& grid = build.grids[blockIdx.y];
  const std::int64_t end = num_slice_tasks(build.tasks, build.source.count);
  for (std::int64_t task = first_task(); task < end; task += task_stride()) {
    const std::int32_t slice = slice_of_task(build.tasks, task, build.source.count);
    CheckedSlice checked;
    checked.band = BandSlice{};
    if (slice < build.source.count) {
      checked = read_slice(build.source, slice, grid.rows_q, build.rows_k);
      const bool is_first_visit = blockIdx.y == 0 && task % build.tasks.num_parts == 0;
      if (is_first_visit) keep_slice(build.slices, build.header->bad_slice, slice, checked);
    }
    for_each_part(
        build.tasks, grid, task, checked.band,
        [&](std::int32_t tile, const BandSlice& part, std::int32_t index) {
          add_tally(build.tallies[grid.first_tally + tile],
                    tally_of_part(grid, part, tile, build.tile.keys, index, build.source.count));
        });
  }
}

__global__ void __launch_bounds__(kThreads) cost_kernel(const __grid_constant__ DeviceBuild build) {
  begin_ahead();
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
  begin_ahead();
  __shared__ PlaceShared shared;
  RecordPlacer(shared, build).run();
}

__global__ void __cluster_dims__(kOrderCtas) __launch_bounds__(kOrderThreads)
    sort_kernel(const __grid_constant__ DeviceBuild build) {
  begin_ahead();
  __shared__ SortShared shared;
  const DeviceListHeader& header = *build.header;
  const std::int32_t num_tiles = build.grids[header.packing].num_tiles;
  const SortJob job{num_tiles, static_cast<std::uint32_t>(kMaxTileCost - header.max_cost),
                    static_cast<std::uint32_t>(header.max_cost_inverse), build.sort_keys[0],
                    build.sort_keys[1]};
  const std::uint64_t* sorted = TileSorter(shared, job).run();
  for (std::int32_t i = thread_of_cluster(); i < num_tiles; i += kOrderCtas * kOrderThreads) {
    build.tiles[i] = build.works[sorted[i] & 0xffffffffu];
  }
}

__global__ void __launch_bounds__(kThreads) fill_kernel(const __grid_constant__ DeviceBuild build) {
  begin_ahead();
  const TileGrid& grid = build.grids[build.header->packing];
  const std::int64_t end = num_slice_tasks(build.tasks, build.source.count);
  for (std::int64_t task = first_task(); task < end; task += task_stride()) {
    const std::int32_t slice = slice_of_task(build.tasks, task, build.source.count);
    const BandSlice band = slice < build.source.count ? build.slices[slice].band : BandSlice{};
    for_each_part(build.tasks, grid, task, band,
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
  begin_ahead();
  __shared__ EmitShared shared;
  RecordWriter(shared, build).run();
}

__global__ void __launch_bounds__(kSplitThreads)
    split_kernel(const __grid_constant__ DeviceBuild build) {
  begin_ahead();
  __shared__ SplitShared shared;
  TileSplitter(shared, build).run();
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
  build.tasks = share_slices(slices.count, kWalkingWarps / build.num_grids, layout.max_tiles);
  const std::int64_t num_tasks = num_slice_tasks(build.tasks, slices.count);
  const unsigned walk_blocks = num_blocks(num_tasks, kThreads / kWarpLanes);
  cuda_check(cudaMemsetAsync(workspace, 0, layout.zeroed_bytes, stream), "cudaMemsetAsync");
  if (num_tasks > 0) {
    count_kernel<<<dim3(walk_blocks, candidates), kThreads, 0, stream>>>(build);
    cuda_check(cudaGetLastError(), "count_kernel");
  }
  const unsigned tile_blocks = num_blocks(layout.max_tiles, kThreads);
  const dim3 cost_grid(tile_blocks, candidates);
  if (num_tasks > 0) {
    launch_ahead(cost_kernel, cost_grid, kThreads, 0, build, stream);
  } else {
    cost_kernel<<<cost_grid, kThreads, 0, stream>>>(build);
    cuda_check(cudaGetLastError(), "cost_kernel");
  }
  launch_ahead(place_kernel, kOrderCtas, kOrderThreads, 0, build, stream);
  if (num_tasks > 0) launch_ahead(fill_kernel, walk_blocks, kThreads, 0, build, stream);
  launch_ahead(emit_kernel, num_blocks(layout.max_tiles, kEmitWarps), kEmitThreads, 0, build,
               stream);
  launch_ahead(sort_kernel, kOrderCtas, kOrderThreads, 0, build, stream);
  // A block for each tile that may be cut: its records are walked by one.
  const unsigned split_blocks =
      std::max(num_blocks(layout.max_tiles, kSplitThreads), num_blocks(layout.max_split_tiles, 1));
  launch_ahead(split_kernel, split_blocks, kSplitThreads, 0, build, stream);
}

}  // namespace magi
