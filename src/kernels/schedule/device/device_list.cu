// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>

#include "cuda/arena.hpp"
#include "cuda/check.hpp"
#include "cuda/launch.cuh"
#include "cuda/shared_memory.hpp"
#include "kernels/schedule/device/device_emit.cuh"
#include "kernels/schedule/device/device_order.cuh"
#include "kernels/schedule/device/device_rank.cuh"
#include "kernels/schedule/device/device_small_list.cuh"
#include "kernels/schedule/device/device_split.cuh"

namespace magi {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxBlocks = 2048;
static_assert(kSmallTiles <= kMaxBlocks * kSmallWarps);
constexpr std::int64_t kWalkingWarps = 4096;  ///< no more than run at once
constexpr std::int32_t kRankedTiles = 32;     ///< that a block looks up
constexpr std::int32_t kFewTiles = 4096;      ///< so many are sorted in one launch

/// Adds to the tallies, and stores the slices.
__device__ void count_slices(const DeviceBuild& build) {
  const TileGrid& grid = build.grid;
  const TallyPlaces places{build.tallies, build.group_records, build.bins};
  const std::int32_t num_tasks = num_slice_tasks(build.tasks, build.source.count);
#pragma unroll 1
  for (std::int32_t task = first_task(); task < num_tasks; task += task_stride()) {
    const std::int32_t slice = slice_of_task(build.tasks, task, build.source.count);
    CheckedSlice checked;
    checked.band = BandSlice{};
    if (slice < build.source.count) {
      checked = read_slice(build.source, slice, grid.rows_q, build.rows_k);
      const bool is_first_visit = task % build.tasks.num_parts == 0;
      if (is_first_visit) keep_slice(build.slices, build.header->bad_slice, slice, checked);
    }
    for_each_part(
        build.tasks, grid, task, checked.band,
        [&](std::int32_t tile, const BandSlice& part, std::int32_t index) {
          add_tally(places, tile,
                    tally_of_part(grid, part, tile, build.tile.keys, index, build.source.count));
        });
  }
}

__device__ void fill_tiles(const DeviceBuild& build) {
  const TileGrid& grid = build.grid;
  const std::int32_t end = num_slice_tasks(build.tasks, build.source.count);
#pragma unroll 1
  for (std::int32_t task = first_task(); task < end; task += task_stride()) {
    const std::int32_t slice = slice_of_task(build.tasks, task, build.source.count);
    const BandSlice band = slice < build.source.count ? build.slices[slice].band : BandSlice{};
    for_each_part(build.tasks, grid, task, band,
                  [&](std::int32_t tile, const BandSlice&, std::int32_t index) {
                    const std::int32_t begin = build.begins[tile];
                    if (begin == kNotStored) return;
                    TileTally& tally = build.tallies[tile];
                    build.slice_ids[begin + atomicSub(&tally.num_records, 1) - 1] = index;
                  });
  }
}

/// The place of the sorted tiles: the list, unless some are split afterwards.
__device__ TileWork* sorted_tiles(const DeviceBuild& build) {
  const DeviceListHeader& header = *build.header;
  if (build.max_split_tiles == 0) return build.works;
  const SplitShares shares = split_shares(build.split, static_cast<std::int64_t>(header.list_cost),
                                          build.grid.head_groups, build.tile);
  return shares.is_split(header.max_cost) ? build.tiles : build.works;
}

/// One thread of all that sort calls it.
__device__ void report_sorted(const DeviceBuild& build, const TileWork* sorted) {
  build.header->is_splitting = sorted == build.works ? 0 : 1;
  build.header->outcome.num_works = build.grid.num_tiles;
}

template <int kCtas>
__device__ void sort_works(SortShared& shared, const DeviceBuild& build) {
  const DeviceListHeader& header = *build.header;
  const SortJob job{
      build.grid.num_tiles, static_cast<std::uint32_t>(kMaxTileCost - header.max_cost),
      static_cast<std::uint32_t>(header.max_cost_inverse), build.sort_keys[0], build.sort_keys[1]};
  const std::uint64_t* keys = TileSorter<kCtas>(shared, job).run();
  TileWork* sorted = sorted_tiles(build);
#pragma unroll 1
  for (std::int32_t i = thread_of_cluster<kCtas>(); i < job.num_tiles; i += kCtas * kOrderThreads) {
    sorted[i] = build.placed[keys[i] & 0xffffffffu];
  }
  if (thread_of_cluster<kCtas>() == 0) report_sorted(build, sorted);
}

__global__ void __launch_bounds__(kThreads)
    clear_kernel(const __grid_constant__ DeviceBuild build) {
  clear_chunks(build.header, build.zeroed_chunks, blockIdx.x, gridDim.x);
  ptx::launch_dependents();
}

__global__ void __launch_bounds__(kThreads)
    count_kernel(const __grid_constant__ DeviceBuild build) {
  begin_ahead();
  count_slices(build);
}

template <int kCtas>
__global__ void MAGI_CLUSTER_OF(kCtas) __launch_bounds__(kOrderThreads)
    place_kernel(const __grid_constant__ DeviceBuild build) {
  begin_ahead();
  __shared__ PlaceShared shared;
  RecordPlacer<kCtas>(shared, build).run();
}

__global__ void __launch_bounds__(kThreads, 4)
    fill_kernel(const __grid_constant__ DeviceBuild build) {
  begin_ahead();
  fill_tiles(build);
}

__global__ void __launch_bounds__(kEmitThreads, 4)
    emit_kernel(const __grid_constant__ DeviceBuild build) {
  begin_ahead();
  __shared__ EmitShared shared;
  RecordWriter(shared, build).run();
}

__global__ void __launch_bounds__(kChunkKeys)
    sort_chunks_kernel(const __grid_constant__ DeviceBuild build) {
  begin_ahead();
  const std::int32_t first = static_cast<std::int32_t>(blockIdx.x) * kChunkKeys;
  const std::int32_t count = build.grid.num_tiles - first;
  if (count <= 0) return;
  __shared__ alignas(16) std::uint64_t chunk[kChunkKeys];
  std::uint64_t own = ~std::uint64_t{0};  // after all others
  if (static_cast<std::int32_t>(threadIdx.x) < count) own = build.sort_keys[0][first + threadIdx.x];
  sort_chunk(chunk, own, count, build.sort_keys[1] + first);
}

__global__ void __launch_bounds__(kRankThreads)
    rank_kernel(const __grid_constant__ DeviceBuild build) {
  begin_ahead();
  extern __shared__ std::uint64_t room[];
  __shared__ std::int32_t places[kRankedTiles];
  TileWork* sorted = nullptr;
  if (threadIdx.x < kRankedTiles) sorted = sorted_tiles(build);
  if (blockIdx.x == 0 && threadIdx.x == 0) report_sorted(build, sorted);
  const auto visit = [&](std::uint64_t key, std::int32_t place) {
    sorted[place] = build.placed[key & 0xffffffffu];
  };
  if (build.grid.num_tiles <= kFewTiles) {
    return rank_few_keys(build.sort_keys[0], build.grid.num_tiles, room, places, visit);
  }
  rank_keys<true>(build.sort_keys[1], build.grid.num_tiles, room, places, visit);
}

template <int kCtas>
__global__ void MAGI_CLUSTER_OF(kCtas) __launch_bounds__(kOrderThreads, 1)
    sort_many_kernel(const __grid_constant__ DeviceBuild build) {
  begin_ahead();
  __shared__ SortShared shared;
  sort_works<kCtas>(shared, build);
}

__global__ void __launch_bounds__(kSplitThreads)
    split_kernel(const __grid_constant__ DeviceBuild build) {
  begin_ahead();
  if (build.header->is_splitting == 0) return;
  __shared__ SplitShared shared;
  TileSplitter(shared, build).run();
}

__global__ void __launch_bounds__(kSmallThreads, 4)
    price_small_kernel(const __grid_constant__ DeviceBuild build) {
  begin_ahead();
  __shared__ SmallListShared shared;
  SmallListMaker(shared, build).price_tile();
}

/// The slices may be read at once: the kernel before began when they were there.
__global__ void __launch_bounds__(kSmallThreads, 4)
    write_small_kernel(const __grid_constant__ DeviceBuild build) {
  ptx::launch_dependents();
  __shared__ SmallListShared shared;
  SmallListMaker maker(shared, build);
  ptx::await_kernels_before();
  maker.write_tile();
}

/// The records of a small list always have room.
bool is_small(const DeviceListShape& shape, const DeviceListLayout& layout) {
  const std::int32_t num_tiles = layout.grid.num_tiles;
  return shape.num_slices <= kSmallSlices && num_tiles <= kSmallTiles &&
         std::int64_t{shape.num_slices} * num_tiles <= shape.record_capacity;
}

unsigned num_blocks(std::int64_t units, std::int64_t units_per_block) {
  const std::int64_t blocks = (units + units_per_block - 1) / units_per_block;
  return static_cast<unsigned>(std::clamp<std::int64_t>(blocks, 1, kMaxBlocks));
}

void launch_small(const DeviceBuild& build, cudaStream_t stream) {
  const unsigned blocks = num_blocks(build.grid.num_tiles, kSmallWarps);
  // Not launched ahead: the next kernel reads the slices while this one runs.
  price_small_kernel<<<blocks, kSmallThreads, 0, stream>>>(build);
  cuda_check(cudaGetLastError(), "price_small_kernel");
  launch_ahead(write_small_kernel, blocks, kSmallThreads, 0, build, stream);
}

/// The steps clear to emit.
void launch_gathering(const DeviceBuild& build, bool has_clusters, cudaStream_t stream) {
  const std::int32_t num_tiles = build.grid.num_tiles;
  // Not launched ahead: the kernel before may not allow others to begin beside it.
  clear_kernel<<<num_blocks(build.zeroed_chunks, kThreads), kThreads, 0, stream>>>(build);
  cuda_check(cudaGetLastError(), "clear_kernel");
  const unsigned walk_blocks =
      num_blocks(num_slice_tasks(build.tasks, build.source.count), kThreads / kWarpLanes);
  launch_ahead(count_kernel, walk_blocks, kThreads, 0, build, stream);
  if (build.bins == nullptr) {
    launch_ahead(has_clusters ? place_kernel<kOrderCtas> : place_kernel<kLoneCta>,
                 has_clusters ? kOrderCtas : kLoneCta, kOrderThreads, 0, build, stream);
    launch_ahead(fill_kernel, walk_blocks, kThreads, 0, build, stream);
  }
  launch_ahead(emit_kernel, num_blocks(num_tiles, kEmitWarps), kEmitThreads, 0, build, stream);
}

DeviceBuild make_device_build(const DeviceListShape& shape, const DeviceListLayout& layout,
                              const SliceArrays& slices, void* workspace) {
  DeviceBuild build;
  build.source = slices;
  build.grid = layout.grid;
  build.rows_k = shape.problem.rows_k;
  build.tile = shape.tile;
  build.split = shape.split;
  build.max_split_tiles = layout.max_split_tiles;
  build.record_capacity = shape.record_capacity;
  build.zeroed_chunks = static_cast<std::int64_t>(layout.zeroed_bytes / sizeof(uint4));
  build.tasks = share_slices(slices.count, kWalkingWarps, layout.grid.num_tiles);
  build.header = part_at<DeviceListHeader>(workspace, 0);
  build.tallies = part_at<TileTally>(workspace, layout.tallies);
  build.slices = part_at<BandRecord>(workspace, layout.slices);
  build.group_records = part_at<std::int32_t>(workspace, layout.group_records);
  build.placed = part_at<TileWork>(workspace, layout.placed);
  build.tiles = part_at<TileWork>(workspace, layout.tiles);
  build.works = part_at<TileWork>(workspace, layout.works);
  build.split_tiles = part_at<SplitTile>(workspace, layout.split_tiles);
  build.begins = part_at<std::int32_t>(workspace, layout.begins);
  build.sort_keys[0] = part_at<std::uint64_t>(workspace, layout.sort_keys);
  build.sort_keys[1] = build.sort_keys[0] + layout.grid.num_tiles;
  if (layout.has_bins) {
    build.bins = part_at<std::int32_t>(workspace, layout.bins);
  } else {
    build.slice_ids = part_at<std::int32_t>(workspace, layout.slice_ids);
  }
  build.records = part_at<BandRecord>(workspace, layout.records);
  return build;
}

/// The step sort.
void sort_tiles(const DeviceBuild& build, bool has_clusters, cudaStream_t stream) {
  const std::int32_t num_tiles = build.grid.num_tiles;
  if (num_tiles > kMostRankedKeys) {
    launch_ahead(has_clusters ? sort_many_kernel<kOrderCtas> : sort_many_kernel<kLoneCta>,
                 has_clusters ? kOrderCtas : kLoneCta, kOrderThreads, 0, build, stream);
    return;
  }
  constexpr std::size_t kKeyBytes = sizeof(std::uint64_t);
  static SharedMemoryGrant grant;
  grant.ensure(rank_kernel, static_cast<int>(kMostRankedKeys * kKeyBytes));
  if (num_tiles > kFewTiles) {
    launch_ahead(sort_chunks_kernel, num_blocks(num_tiles, kChunkKeys), kChunkKeys, 0, build,
                 stream);
  }
  launch_ahead(rank_kernel, num_blocks(num_tiles, kRankedTiles), kRankThreads,
               static_cast<std::size_t>(num_tiles) * kKeyBytes, build, stream);
}

}  // namespace

void build_device_list(const DeviceListShape& shape, const DeviceListLayout& layout,
                       const SliceArrays& slices, void* workspace, cudaStream_t stream) {
  const DeviceBuild build = make_device_build(shape, layout, slices, workspace);
  if (is_small(shape, layout)) {
    launch_small(build, stream);
  } else {
    launch_gathering(build, shape.has_clusters, stream);
    sort_tiles(build, shape.has_clusters, stream);
  }
  if (layout.max_split_tiles == 0) return;
  // A block for each tile that may be cut, which walks the tile's records.
  const unsigned split_blocks = std::max(num_blocks(build.grid.num_tiles, kSplitThreads),
                                         num_blocks(layout.max_split_tiles, 1));
  launch_ahead(split_kernel, split_blocks, kSplitThreads, 0, build, stream);
}

}  // namespace magi
