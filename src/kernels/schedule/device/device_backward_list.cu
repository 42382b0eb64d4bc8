// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <iterator>

#include "cuda/arena.hpp"
#include "cuda/check.hpp"
#include "cuda/launch.cuh"
#include "cuda/shared_memory.hpp"
#include "kernels/schedule/device/device_backward_cut.cuh"
#include "kernels/schedule/device/device_backward_emit.cuh"
#include "kernels/schedule/device/device_backward_join.cuh"
#include "kernels/schedule/device/device_backward_order.cuh"
#include "kernels/schedule/device/device_backward_rank.cuh"
#include "kernels/schedule/device/device_backward_sort.cuh"

namespace magi {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxBlocks = 2048;
constexpr std::int64_t kWalkingWarps = 4096;  ///< no more than run at once
/// The most words or k tiles that one CTA scans sooner than a cluster does.
constexpr std::int64_t kFewScanned = 8 * kOrderThreads;
/// Enough for records of the usual lists; each block adds the groups up anew.
constexpr std::int64_t kMaxNumberBlocks = 528;
/// Fewer than run at once: the kernel after a list may begin beside it.
constexpr std::int64_t kMaxOrderBlocks = 600;

/// Marks where the slices begin in k.
__device__ void mark_slices(const BackwardBuild& build) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
#pragma unroll 1
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < build.source.count;
       i += stride) {
    const auto slice = static_cast<std::int32_t>(i);
    mark_slice(read_slice(build.source, slice, build.rows_q, build.grids[0].rows_k).band,
               build.cut_bits);
  }
}

/// Adds to the tallies of one way to cut the keys, and keeps the slices.
__device__ void count_tiling(ScanStorage<std::int64_t, kThreads>& storage,
                             const BackwardBuild& build, int tiling) {
  const KeyGrid grid = grid_of(build, tiling);
  const std::int32_t end = num_slice_tasks(build.tasks, build.source.count);
  std::int64_t steps = 0;
#pragma unroll 1
  for (std::int32_t task = first_task(); task < end; task += task_stride()) {
    const std::int32_t slice = slice_of_task(build.tasks, task, build.source.count);
    CheckedSlice checked;
    checked.band = BandSlice{};
    if (slice < build.source.count) {
      checked = read_slice(build.source, slice, build.rows_q, grid.rows_k);
      const bool is_first_visit = tiling == 0 && task % build.tasks.num_parts == 0;
      if (is_first_visit) keep_slice(build.slices, build.header->bad_slice, slice, checked);
    }
    for_each_part(build.tasks, grid, task, checked.band,
                  [&](std::int32_t tile, const BandSlice& part, std::int32_t index) {
                    const Range tiles = tiles_of_part(part, build.token_shift);
                    TileTally tally;
                    tally.num_k_tiles = static_cast<std::uint64_t>(tiles.end - tiles.begin);
                    tally.num_records = 1;
                    tally.end_slice = index + 1;
                    tally.begin_inverse = build.source.count - index;
                    add_tally(build.tallies[tiling], tile, tally);
                    steps += tiles.end - tiles.begin;
                  });
  }
  // The sums of single warps would queue up at the one word.
  const std::int64_t of_block = scan_block<kThreads>(steps, storage).total;
  if (threadIdx.x == 0 && of_block != 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&build.header->steps[tiling]),
              static_cast<unsigned long long>(of_block));
  }
}

using PlaceShared64 = ClusterScanShared<std::int64_t>;

/// Chooses the way with the lower cost and makes the works of its k tiles: one CTA or cluster of up
/// to kMost.
template <int kMost>
__device__ void place_records(PlaceShared64& shared, const BackwardBuild& build) {
  const int tiling = cheaper_tiling(build);
  const KeyGrid grid = grid_of(build, tiling);
  const Range share = own_share<kMost>(grid.num_tiles);
  std::int64_t own = 0;
#pragma unroll 4
  for (std::int32_t i = share.begin; i < share.end; ++i) {
    own += build.tallies[tiling].tallies[i].num_records;
  }
  const auto scan = scan_cluster<kMost>(shared, own, std::int64_t{0}, Sum{});
  std::int64_t next = scan.before;
#pragma unroll 4
  for (std::int32_t i = share.begin; i < share.end; ++i) {
    const std::int64_t end = next + build.tallies[tiling].tallies[i].num_records;
    const Range keys = keys_of_tile(grid, i);
    KeyTile tile;
    tile.key_begin = keys.begin;
    tile.key_end = keys.end;
    if (end <= build.record_capacity) {
      tile.record_begin = static_cast<std::int32_t>(next);
      tile.record_end = static_cast<std::int32_t>(end);
    }
    build.works[i] = tile;
    next = end;
  }
  if (thread_of_cluster<kMost>() == 0) report_tiling(build, tiling, scan.total);
}

__device__ void fill_tiles(const BackwardBuild& build) {
  if (build.header->outcome.is_overflowing != 0) return;
  const int tiling = build.header->tiling;
  const KeyGrid grid = grid_of(build, tiling);
  const std::int32_t end = num_slice_tasks(build.tasks, build.source.count);
#pragma unroll 1
  for (std::int32_t task = first_task(); task < end; task += task_stride()) {
    const std::int32_t slice = slice_of_task(build.tasks, task, build.source.count);
    const BandSlice band = slice < build.source.count ? build.slices[slice].band : BandSlice{};
    for_each_part(build.tasks, grid, task, band,
                  [&](std::int32_t tile, const BandSlice&, std::int32_t index) {
                    std::int32_t& left = build.tallies[tiling].tallies[tile].num_records;
                    const std::int32_t place =
                        build.works[tile].record_begin + atomicSub(&left, 1) - 1;
                    build.slice_ids[place] = index;
                  });
  }
}

__global__ void __launch_bounds__(kThreads)
    clear_kernel(const __grid_constant__ BackwardBuild build) {
  clear_chunks(build.header, build.zeroed_chunks, blockIdx.x, gridDim.x);
  ptx::launch_dependents();
}

__global__ void __launch_bounds__(kThreads)
    mark_kernel(const __grid_constant__ BackwardBuild build) {
  begin_ahead();
  mark_slices(build);
}

template <int kMost>
__global__ void __launch_bounds__(kOrderThreads)
    cut_kernel(const __grid_constant__ BackwardBuild build) {
  begin_ahead();
  __shared__ typename KeyCutter<kMost>::Shared shared;
  KeyCutter<kMost>(shared, build, build.cut_bits).run();
}

/// If there are bins, the first block cuts the keys and the others clear.
template <int kMost>
__global__ void __launch_bounds__(kOrderThreads)
    clear_and_cut_kernel(const __grid_constant__ BackwardBuild build) {
  ptx::launch_dependents();
  if (blockIdx.x > 0) {
    clear_chunks(build.header, build.zeroed_chunks, blockIdx.x - 1, gridDim.x - 1);
    return;
  }
  __shared__ typename KeyCutter<kMost>::Shared shared;
  extern __shared__ std::uint32_t marks[];
  mark_slices_of_block(build, marks);
  KeyCutter<kMost>(shared, build, marks).run();
}

__global__ void __launch_bounds__(kThreads)
    count_kernel(const __grid_constant__ BackwardBuild build) {
  begin_ahead();
  __shared__ ScanStorage<std::int64_t, kThreads> storage;
  count_tiling(storage, build, static_cast<int>(blockIdx.y));
}

template <int kMost>
__global__ void __launch_bounds__(kOrderThreads)
    place_kernel(const __grid_constant__ BackwardBuild build) {
  begin_ahead();
  __shared__ PlaceShared64 shared;
  place_records<kMost>(shared, build);
}

__global__ void __launch_bounds__(kThreads, 4)
    fill_kernel(const __grid_constant__ BackwardBuild build) {
  begin_ahead();
  fill_tiles(build);
}

__global__ void __launch_bounds__(kEmitThreads)
    emit_kernel(const __grid_constant__ BackwardBuild build) {
  begin_ahead();
  __shared__ KeyEmitShared shared;
  KeyRecordWriter(shared, build).run();
}

__global__ void __launch_bounds__(kJoinThreads)
    join_kernel(const __grid_constant__ BackwardBuild build) {
  begin_ahead();
  if (build.header->outcome.is_overflowing != 0) return;
  __shared__ RowScanStorage storage;
  RowJoiner(storage, build).run();
}

__global__ void __launch_bounds__(kJoinThreads)
    number_kernel(const __grid_constant__ BackwardBuild build) {
  begin_ahead();
  if (build.header->outcome.is_overflowing != 0) return;
  __shared__ ComponentShared shared;
  ComponentMarker(shared, build).run();
}

__global__ void __launch_bounds__(kChunkKeys)
    sort_chunks_kernel(const __grid_constant__ BackwardBuild build) {
  begin_ahead();
  __shared__ KeyChunk chunk;
  TileChunkSorter(chunk, build).run();
}

/// kHasRoom: shared memory for all keys, 128 KiB, which GPUs other than Hopper may not have.
template <bool kHasRoom>
__global__ void __launch_bounds__(kRankThreads, kHasRoom ? 0 : 1)
    rank_kernel(const __grid_constant__ BackwardBuild build) {
  begin_ahead();
  extern __shared__ uint4 room[];
  __shared__ std::int32_t places[kRankedTiles];
  rank_tiles<kHasRoom>(room, places, build);
}

__global__ void __launch_bounds__(kRankThreads)
    arrange_kernel(const __grid_constant__ BackwardBuild build) {
  begin_ahead();
  __shared__ ArrangeShared shared;
  TileArranger(shared, build).run();
}

/// The steps sort and arrange of many k tiles.
template <int kCtas>
__global__ void MAGI_CLUSTER_OF(kCtas) __launch_bounds__(kOrderThreads, kCtas == kLoneCta ? 1 : 0)
    sort_many_kernel(const __grid_constant__ BackwardBuild build) {
  begin_ahead();
  __shared__ PlainSortShared shared;
  PlainSorter<kCtas>(shared, build).run();
}

__global__ void __launch_bounds__(kRunThreads, 4)
    order_kernel(const __grid_constant__ BackwardBuild build) {
  begin_ahead();
  if (build.header->outcome.num_tiles == 0) return;
  if (build.header->outcome.is_ordered == 0) return share_sums(build);
  __shared__ RunShared shared;
  if (blockIdx.x + 1 == gridDim.x) return count_additions(shared, build);
  const auto num_records = static_cast<std::int32_t>(build.header->outcome.num_records);
  RunsWriter(shared, build, num_records).run();
}

/// Launches a kernel of one cluster, on Hopper, as launch_ahead does.
void launch_cluster_ahead(void (*kernel)(BackwardBuild), unsigned num_ctas,
                          const BackwardBuild& build, cudaStream_t stream) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {.x = num_ctas, .y = 1, .z = 1};
  cudaLaunchConfig_t config{};
  config.gridDim = num_ctas;
  config.blockDim = kOrderThreads;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = std::size(attributes);
  cuda_check(cudaLaunchKernelEx(&config, kernel, build), "cudaLaunchKernelEx");
}

/// Launches a step that one CTA or a cluster takes, by the kernel for either or for CTAs alone.
void launch_scan_ahead(void (*kernel)(BackwardBuild), void (*lone_kernel)(BackwardBuild),
                       const DeviceBackwardShape& shape, std::int64_t count,
                       const BackwardBuild& build, cudaStream_t stream) {
  if (!shape.has_clusters) {
    return launch_ahead(lone_kernel, kLoneCta, kOrderThreads, 0, build, stream);
  }
  launch_cluster_ahead(kernel, count <= kFewScanned ? 1 : kOrderCtas, build, stream);
}

unsigned num_blocks(std::int64_t units, std::int64_t units_per_block) {
  const std::int64_t blocks = (units + units_per_block - 1) / units_per_block;
  return static_cast<unsigned>(std::clamp<std::int64_t>(blocks, 1, kMaxBlocks));
}

void set_shapes(BackwardBuild& build, const DeviceBackwardShape& shape,
                const DeviceBackwardLayout& layout) {
  const BackwardList& frame = layout.frame;
  build.rows_q = shape.problem.rows_q;
  build.num_q_tiles = frame.num_q_tiles();
  build.packed_heads = frame.packed_heads;
  build.token_shift = std::countr_zero(static_cast<std::uint32_t>(frame.tile_tokens));
  build.max_tiles = layout.max_tiles;
  build.rule = rule_of(shape);
  build.record_capacity = shape.record_capacity;
  build.run_capacity = layout.run_capacity;
  build.zeroed_chunks = static_cast<std::int64_t>(layout.zeroed_bytes / sizeof(uint4));
#pragma unroll 1
  for (KeyGrid& grid : build.grids) {
    grid.rows_k = shape.problem.rows_k;
    grid.keys = shape.tile.keys;
  }
  build.grids[0].num_tiles = (shape.problem.rows_k + shape.tile.keys - 1) / shape.tile.keys;
}

void set_tallies(BackwardBuild& build, const DeviceBackwardLayout& layout, void* memory) {
  for (int tiling = 0; tiling < kKeyTilings; ++tiling) {
    const std::int64_t first = std::int64_t{tiling} * layout.max_tiles;
    TallyPlaces& places = build.tallies[tiling];
    places.tallies = part_at<TileTally>(memory, layout.tallies) + first;
    places.group_records =
        part_at<std::int32_t>(memory, layout.group_records) + tiling * kMostTileGroups;
    places.bins =
        layout.has_bins ? part_at<std::int32_t>(memory, layout.bins) + first * kBinSlices : nullptr;
  }
}

BackwardBuild make_build(const DeviceBackwardShape& shape, const DeviceBackwardLayout& layout,
                         const SliceArrays& slices, void* memory) {
  BackwardBuild build;
  build.source = slices;
  set_shapes(build, shape, layout);
  build.header = part_at<DeviceBackwardHeader>(memory, 0);
  if (!layout.has_bins) build.cut_bits = part_at<std::uint32_t>(memory, layout.cut_bits);
  build.num_cut_tiles = part_at<std::int32_t>(memory, layout.num_cut_tiles);
  build.group_ends = part_at<std::int32_t>(memory, layout.group_ends);
  build.group_counts = part_at<std::int32_t>(memory, layout.group_counts);
  build.groups = layout.groups;
  build.component_keys = part_at<ComponentKey>(memory, layout.component_keys);
  build.by_component = part_at<std::uint64_t>(memory, layout.by_component);
  build.component_steps = part_at<std::int32_t>(memory, layout.component_steps);
  build.row_ends = part_at<std::int32_t>(memory, layout.row_ends);
  set_tallies(build, layout, memory);
  build.longest = part_at<std::int32_t>(memory, layout.longest);
  build.record_ends = part_at<std::int32_t>(memory, layout.record_ends);
  build.record_begins = part_at<std::int32_t>(memory, layout.record_begins);
  build.begins = part_at<std::int32_t>(memory, layout.begins);
  build.grids[1].begins = build.begins;
  build.grids[1].tiles = {part_at<std::uint32_t>(memory, layout.tile_bits),
                          part_at<std::int32_t>(memory, layout.tile_prefix)};
  build.components = {part_at<std::uint32_t>(memory, layout.component_bits),
                      part_at<std::int32_t>(memory, layout.component_prefix)};
  build.covered.bits = part_at<std::uint32_t>(memory, layout.covered_bits);
  build.seen_queries = part_at<std::uint32_t>(memory, layout.seen_queries);
  build.seen_keys = part_at<std::uint32_t>(memory, layout.seen_keys);
  build.tile_components = part_at<std::int32_t>(memory, layout.tile_components);
  build.tile_semaphores = part_at<TileSemaphores>(memory, layout.tile_semaphores);
  build.addition_changes = part_at<std::int32_t>(memory, layout.addition_changes);
  build.converted_tiles = part_at<std::int32_t>(memory, layout.converted_tiles);
  build.slices = part_at<BandRecord>(memory, layout.slices);
  if (!layout.has_bins) build.slice_ids = part_at<std::int32_t>(memory, layout.slice_ids);
  build.works = part_at<KeyTile>(memory, layout.works);
  build.tile_component = part_at<std::int32_t>(memory, layout.components);
  build.places = part_at<std::int32_t>(memory, layout.places);
  build.items = part_at<std::int32_t>(memory, layout.items);
  build.sort_keys[0] = part_at<std::uint64_t>(memory, layout.sort_keys);
  build.sort_keys[1] = build.sort_keys[0] + layout.max_tiles;
  build.tiles = part_at<KeyTile>(memory, layout.tiles);
  build.records = part_at<KeyRecord>(memory, layout.records);
  build.marks = part_at<RecordMark>(memory, layout.marks);
  build.runs = part_at<SemaphoreRun>(memory, layout.runs);
  return build;
}

/// Steps clear and cut.
void launch_cutting(const BackwardBuild& build, const DeviceBackwardShape& shape,
                    const DeviceBackwardLayout& layout, cudaStream_t stream) {
  const std::int64_t words = num_row_words(build.grids[1].rows_k);
  if (layout.has_bins) {
    const auto kernel =
        shape.has_clusters ? clear_and_cut_kernel<kOrderCtas> : clear_and_cut_kernel<kLoneCta>;
    // Like clear_kernel not launched ahead: the one before may not allow others beside it.
    kernel<<<1 + num_blocks(build.zeroed_chunks, kOrderThreads), kOrderThreads,
             static_cast<std::size_t>(words) * sizeof(std::uint32_t), stream>>>(build);
    cuda_check(cudaGetLastError(), "clear_and_cut_kernel");
    return;
  }
  clear_kernel<<<num_blocks(build.zeroed_chunks, kThreads), kThreads, 0, stream>>>(build);
  cuda_check(cudaGetLastError(), "clear_kernel");
  launch_ahead(mark_kernel, num_blocks(build.source.count, kThreads), kThreads, 0, build, stream);
  launch_scan_ahead(cut_kernel<kOrderCtas>, cut_kernel<kLoneCta>, shape, words, build, stream);
}

/// Steps count to emit.
void launch_gathering(const BackwardBuild& build, const DeviceBackwardShape& shape,
                      const DeviceBackwardLayout& layout, cudaStream_t stream) {
  const unsigned walk_blocks =
      num_blocks(num_slice_tasks(build.tasks, build.source.count), kThreads / kWarpLanes);
  launch_ahead(count_kernel, dim3(walk_blocks, kKeyTilings), kThreads, 0, build, stream);
  if (!layout.has_bins) {
    launch_scan_ahead(place_kernel<kOrderCtas>, place_kernel<kLoneCta>, shape, layout.max_tiles,
                      build, stream);
    launch_ahead(fill_kernel, walk_blocks, kThreads, 0, build, stream);
  }
  launch_ahead(emit_kernel, num_blocks(layout.max_tiles, kEmitWarps), kEmitThreads, 0, build,
               stream);
}

/// Steps join to arrange.
void launch_sorting(const BackwardBuild& build, const DeviceBackwardShape& shape,
                    const DeviceBackwardLayout& layout, cudaStream_t stream) {
  const bool has_clusters = shape.has_clusters;
  launch_ahead(join_kernel, static_cast<unsigned>(layout.groups.count), kJoinThreads, 0, build,
               stream);
  // Few lists have a quarter of the records that there is room for.
  const std::int64_t units =
      build.record_capacity / 4 + std::int64_t{layout.max_tiles} + build.num_q_tiles;
  launch_ahead(number_kernel,
               static_cast<unsigned>(
                   std::min<std::int64_t>(num_blocks(units, kJoinThreads), kMaxNumberBlocks)),
               kJoinThreads, 0, build, stream);
  if (!layout.has_few_tiles()) {
    launch_ahead(has_clusters ? sort_many_kernel<kOrderCtas> : sort_many_kernel<kLoneCta>,
                 has_clusters ? kOrderCtas : kLoneCta, kOrderThreads, 0, build, stream);
    return;
  }
  static SharedMemoryGrant grant;
  if (has_clusters) {
    grant.ensure(rank_kernel<true>, static_cast<int>(kMostRankedKeys * sizeof(ComponentKey)));
  }
  const std::int32_t num_kept = has_clusters ? layout.max_tiles : 0;
  launch_ahead(sort_chunks_kernel, dim3(num_blocks(layout.max_tiles, kChunkKeys), kTileOrders),
               kChunkKeys, 0, build, stream);
  launch_ahead(has_clusters ? rank_kernel<true> : rank_kernel<false>,
               dim3(num_blocks(layout.max_tiles, kRankedTiles), kTileOrders), kRankThreads,
               static_cast<std::size_t>(num_kept) * sizeof(ComponentKey), build, stream);
  launch_ahead(arrange_kernel, num_blocks(layout.max_tiles, kArrangedTiles), kRankThreads, 0, build,
               stream);
}

}  // namespace

void build_device_backward_list(const DeviceBackwardShape& shape,
                                const DeviceBackwardLayout& layout, const SliceArrays& slices,
                                void* workspace, cudaStream_t stream) {
  BackwardBuild build = make_build(shape, layout, slices, workspace);
  build.tasks = share_slices(slices.count, kWalkingWarps / kKeyTilings, layout.max_tiles);
  launch_cutting(build, shape, layout, stream);
  launch_gathering(build, shape, layout, stream);
  launch_sorting(build, shape, layout, stream);
  // A block for each record of a list of few slices, as one record may take a whole block. Few in
  // all, as the kernel after it finds no room beside blocks that wait.
  const auto order_blocks = static_cast<unsigned>(std::clamp<std::int64_t>(
      std::max<std::int64_t>(layout.max_tiles, shape.record_capacity / (64 * kRunWarps)), 1,
      kMaxOrderBlocks));
  launch_ahead(order_kernel, order_blocks + 1, kRunThreads, 0, build, stream);
}

}  // namespace magi
