// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/arena.hpp"
#include "cuda/check.hpp"
#include "kernels/schedule/blocks/block_lists.hpp"
#include "kernels/schedule/blocks/mask_chunks.cuh"
#include "kernels/schedule/device/device_build.cuh"

namespace magi {
namespace {

constexpr int kListThreads = 256;
constexpr int kMaxBlocks = 4096;
constexpr int kBatch = 4;  // chunks of a row that a lane loads at a time
constexpr int kPartBlocks = kWarpLanes * kChunkBytes;  // of a row: a chunk per lane

/// Arguments of the kernels of a build.
struct BlockListBuild {
  BlockListShape shape;
  BlockListSource source;
  BlockListHeader* header = nullptr;
  BlockList* lists = nullptr;
  std::int32_t* order = nullptr;
  std::int32_t* entries = nullptr;
};

/// The entries that a warp finds in its row of the mask.
struct RowTally {
  std::int32_t num_entries = 0;
  std::int32_t num_runs = 0;
  bool is_bad = false;
  bool is_by_bytes = false;  ///< lanes must read its bytes one by one
};

__device__ std::int32_t sum_over_warp(std::int32_t value) {
  return static_cast<std::int32_t>(__reduce_add_sync(kFullWarp, static_cast<unsigned>(value)));
}

/// Counts a row's entries one by one; an entry n counts n times. `num_reached`: blocks that have
/// entries. Runs are counted over the whole row.
__device__ RowTally tally_bytes(const std::uint8_t* row, std::int32_t num_k,
                                std::int32_t num_reached) {
  RowTally tally{.is_by_bytes = true};
  unsigned carry = 0;  // whether the block before is visible
#pragma unroll 8
  for (std::int32_t base = 0; base < num_k; base += kWarpLanes) {
    const std::int32_t block = base + lane_index();
    const std::int32_t times = block < num_k ? __ldg(row + block) : 0;
    tally.num_entries += block < num_reached ? times : 0;
    tally.is_bad |= times > kMostTimes;
    const unsigned seen = __ballot_sync(kFullWarp, times > 0);
    tally.num_runs += __popc(seen & ~(seen << 1 | carry));
    carry = seen >> 31;
  }
  tally.num_entries = sum_over_warp(tally.num_entries);
  tally.is_bad = __any_sync(kFullWarp, tally.is_bad);
  return tally;
}

/// Calls visit(first, seen) for each part of a row, by a warp: bit i says whether the lane's block
/// first + i is seen, for blocks of [0, num_blocks). Returns whether an entry is above 1.
template <typename Visit>
__device__ __forceinline__ bool for_each_part_of_row(const std::uint8_t* row,
                                                     std::int32_t num_blocks, Visit visit) {
  const MaskChunks chunks(row, num_blocks);
  unsigned above = 0;
  for (std::int32_t base = 0; base < chunks.num_chunks(); base += kBatch * kWarpLanes) {
    uint4 loaded[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) loaded[i] = chunks.load(base + i * kWarpLanes + lane_index());
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const std::int32_t chunk = base + i * kWarpLanes;
      if (chunk >= chunks.num_chunks()) break;
      const std::int32_t first = (chunk + lane_index()) * kChunkBytes - chunks.num_skipped();
      above |= bits_above_one(loaded[i]);
      visit(first, nonzero_bits(loaded[i]) & low_bits(num_blocks - first) & ~low_bits(-first));
    }
  }
  return __any_sync(kFullWarp, above != 0);
}

/// Does what tally_bytes does, sixteen bytes at a time if all entries are 0 or 1.
__device__ RowTally tally_row(const std::uint8_t* row, const BlockGrid& grid,
                              std::int32_t num_reached, const MaskExtent& mask) {
  const std::int32_t num_k = grid.num_k();
  if (!MaskChunks(row, num_k).are_inside(mask)) return tally_bytes(row, num_k, num_reached);
  RowTally tally;
  unsigned carry = 0;  // of lane 0: whether the block before its own is visible
  const bool has_more = for_each_part_of_row(row, num_k, [&](std::int32_t first, unsigned seen) {
    tally.num_entries += __popc(seen & low_bits(num_reached - first));
    const unsigned of_lane_before =
        __shfl_sync(kFullWarp, seen >> (kChunkBytes - 1), lane_index() + kWarpLanes - 1);
    const unsigned before = lane_index() == 0 ? carry : of_lane_before;
    carry = of_lane_before;
    tally.num_runs += __popc(seen & ~(seen << 1 | before));
  });
  if (has_more) return tally_bytes(row, num_k, num_reached);
  tally.num_entries = sum_over_warp(tally.num_entries);
  tally.num_runs = sum_over_warp(tally.num_runs);
  return tally;
}

/// Writes the lanes' blocks, each as often as it is seen. Returns their end.
__device__ std::int32_t* write_times(std::int32_t block, std::int32_t times,
                                     std::int32_t* entries) {
  std::int32_t end = times;
#pragma unroll
  for (int distance = 1; distance < kWarpLanes; distance *= 2) {
    const std::int32_t before = __shfl_up_sync(kFullWarp, end, distance);
    end += lane_index() >= distance ? before : 0;
  }
  for (std::int32_t i = end - times; i < end; ++i) entries[i] = block;
  return entries + __shfl_sync(kFullWarp, end, kWarpLanes - 1);
}

/// Writes blocks [0, num_reached) of a row, each as often as it is seen.
__device__ void write_bytes(const std::uint8_t* row, std::int32_t num_reached,
                            std::int32_t* entries) {
#pragma unroll 8
  for (std::int32_t base = 0; base < num_reached; base += kWarpLanes) {
    const std::int32_t block = base + lane_index();
    const std::int32_t times = block < num_reached ? __ldg(row + block) : 0;
    if (__any_sync(kFullWarp, times > 1)) {
      entries = write_times(block, times, entries);
      continue;
    }
    const unsigned seen = __ballot_sync(kFullWarp, times > 0);
    if (times > 0) entries[__popc(seen & ((1u << lane_index()) - 1))] = block;
    entries += __popc(seen);
  }
}

/// The same if all entries are 0 or 1. `list` collects a part's blocks, so that the warp writes
/// neighbouring entries.
__device__ void write_entries(const std::uint8_t* row, std::int32_t num_reached,
                              std::uint16_t (&list)[kPartBlocks], std::int32_t* entries) {
  for_each_part_of_row(row, num_reached, [&](std::int32_t first, unsigned seen) {
    const std::int32_t up_to = scan_warp(__popc(seen), Sum{});
    std::int32_t place = up_to - __popc(seen);
    for (; seen != 0; seen &= seen - 1) {
      const std::int32_t bit = __ffs(static_cast<int>(seen)) - 1;
      list[place++] = static_cast<std::uint16_t>(lane_index() * kChunkBytes + bit);
    }
    __syncwarp();
    const std::int32_t num_listed = __shfl_sync(kFullWarp, up_to, kWarpLanes - 1);
    const std::int32_t first_of_part = first - lane_index() * kChunkBytes;
    for (std::int32_t i = lane_index(); i < num_listed; i += kWarpLanes) {
      entries[i] = first_of_part + list[i];
    }
    entries += num_listed;
    __syncwarp();
  });
}

/// The entries that the warps of a CTA found, and the begin of all their entries.
struct CtaTally {
  RowTally rows[kListThreads / kWarpLanes];
  unsigned long long begin;
};

/// Takes the list's place among all entries; a list that does not fit gets none. The whole CTA
/// calls, so that one thread adds to the counters that all CTAs share.
__device__ BlockList take_place(const BlockListBuild& build, const RowTally& tally,
                                CtaTally& shared) {
  if (lane_index() == 0) shared.rows[warp_index()] = tally;
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned long long num_entries = 0;
    unsigned long long num_runs = 0;
    for (const RowTally& row : shared.rows) {
      num_entries += static_cast<unsigned>(row.num_entries);
      num_runs += static_cast<unsigned>(row.num_runs);
      if (row.is_bad) atomicAdd(&build.header->num_bad_lists, 1u);
    }
    shared.begin =
        atomicAdd(reinterpret_cast<unsigned long long*>(&build.header->num_entries), num_entries);
    atomicAdd(reinterpret_cast<unsigned long long*>(&build.header->num_runs), num_runs);
  }
  __syncthreads();
  unsigned long long begin = shared.begin;
  for (int warp = 0; warp < warp_index(); ++warp) {
    begin += static_cast<unsigned>(shared.rows[warp].num_entries);
  }
  __syncthreads();
  const auto num_entries = static_cast<unsigned long long>(tally.num_entries);
  if (begin + num_entries <= static_cast<unsigned long long>(build.shape.max_entries)) {
    return {static_cast<std::int32_t>(begin), tally.num_entries};
  }
  return {};
}

/// A warp for each list.
__global__ void __launch_bounds__(kListThreads)
    list_kernel(const __grid_constant__ BlockListBuild build) {
  const BlockGrid& grid = build.shape.grid;
  const std::int32_t num_k = grid.num_k();
  const std::int32_t num_lists = grid.num_lists();
  constexpr std::int32_t kWarps = kListThreads / kWarpLanes;
  __shared__ CtaTally shared;
  __shared__ std::uint16_t blocks[kWarps][kPartBlocks];
  const MaskExtent mask{build.source.visible,
                        build.source.visible + std::int64_t{num_lists} * num_k};
  const auto stride = static_cast<std::int32_t>(gridDim.x) * kWarps;
  for (auto first = static_cast<std::int32_t>(blockIdx.x) * kWarps; first < num_lists;
       first += stride) {
    const std::int32_t list = first + warp_index();
    const bool is_list = list < num_lists;
    const std::uint8_t* row = build.source.visible + std::int64_t{list} * num_k;
    const std::int32_t num_reached = is_list ? grid.num_reached(list % grid.num_q()) : 0;
    const RowTally tally = is_list ? tally_row(row, grid, num_reached, mask) : RowTally{};
    const BlockList place = take_place(build, tally, shared);
    if (is_list && lane_index() == 0) build.lists[list] = place;
    if (place.count == 0) continue;
    std::int32_t* entries = build.entries + place.begin;
    if (tally.is_by_bytes) {
      write_bytes(row, num_reached, entries);
    } else {
      write_entries(row, num_reached, blocks[warp_index()], entries);
    }
  }
}

__device__ void report_to_caller(const BlockListBuild& build) {
  std::int64_t* word = build.source.error_word;
  const std::int64_t beyond = num_beyond(*build.header, build.shape);
  if (word == nullptr || (beyond == 0 && build.source.keeps_word)) return;
  word[0] = beyond;
  word[1] = -1;
}

/// A CTA for each section of kv heads.
__global__ void __launch_bounds__(kLengthBuckets)
    order_kernel(const __grid_constant__ BlockListBuild build) {
  __shared__ std::int32_t places[kLengthBuckets];
  __shared__ ScanStorage<std::int32_t, kLengthBuckets> storage;
  const BlockGrid& grid = build.shape.grid;
  const std::int32_t num_q = grid.num_q();
  const std::int32_t shift = length_shift(grid.num_k());
  const std::int32_t first_head = static_cast<std::int32_t>(blockIdx.x) * build.shape.section_heads;
  const std::int32_t end_head = min(first_head + build.shape.section_heads, grid.heads_kv);
  const std::int32_t begin = first_head * num_q;
  const std::int32_t end = end_head * num_q;
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const auto bucket_of = [&](std::int32_t task) {
    const std::int32_t list = grid.list_of(task / num_q, task % num_q);
    return length_bucket(build.lists[list].count, shift);
  };
  if (blockIdx.x == 0 && thread == 0) report_to_caller(build);
  places[thread] = 0;
  __syncthreads();
  for (std::int32_t task = begin + thread; task < end; task += kLengthBuckets) {
    atomicAdd(&places[bucket_of(task)], 1);
  }
  __syncthreads();
  const std::int32_t before = scan_block<kLengthBuckets>(places[thread], storage).before;
  places[thread] = begin + before;
  __syncthreads();
  for (std::int32_t task = begin + thread; task < end; task += kLengthBuckets) {
    build.order[atomicAdd(&places[bucket_of(task)], 1)] = task;
  }
}

/// Sets the caller's error word if there are no lists.
void report_none(const BlockListSource& source, cudaStream_t stream) {
  std::int64_t* word = source.error_word;
  if (word == nullptr || source.keeps_word) return;
  cuda_check(cudaMemsetAsync(word, 0, sizeof *word, stream), "cudaMemsetAsync");
  cuda_check(cudaMemsetAsync(word + 1, 0xff, sizeof *word, stream), "cudaMemsetAsync");
}

}  // namespace

void build_block_lists(const BlockListShape& shape, const BlockListLayout& layout,
                       const BlockListSource& source, void* workspace, cudaStream_t stream) {
  const BlockListBuild build{.shape = shape,
                             .source = source,
                             .header = part_at<BlockListHeader>(workspace, 0),
                             .lists = part_at<BlockList>(workspace, layout.lists),
                             .order = part_at<std::int32_t>(workspace, layout.order),
                             .entries = part_at<std::int32_t>(workspace, layout.entries)};
  cuda_check(cudaMemsetAsync(workspace, 0, sizeof(BlockListHeader), stream), "cudaMemsetAsync");
  const std::int32_t num_lists = shape.grid.num_lists();
  if (num_lists == 0) return report_none(source, stream);
  constexpr int kWarps = kListThreads / kWarpLanes;
  const int blocks = std::min((num_lists + kWarps - 1) / kWarps, kMaxBlocks);
  list_kernel<<<blocks, kListThreads, 0, stream>>>(build);
  cuda_check(cudaGetLastError(), "list_kernel");
  const int sections = (shape.grid.heads_kv + shape.section_heads - 1) / shape.section_heads;
  order_kernel<<<sections, kLengthBuckets, 0, stream>>>(build);
  cuda_check(cudaGetLastError(), "order_kernel");
}

}  // namespace magi
