// SPDX-License-Identifier: Apache-2.0
#include "cuda/arena.hpp"
#include "cuda/check.hpp"
#include "kernels/worklist/block_key_lists.hpp"
#include "kernels/worklist/device_build.cuh"

namespace magi {
namespace {

constexpr int kTileThreads = 128;

/// Arguments of the kernels of a build.
struct BlockKeyBuild {
  BlockKeyShape shape;
  const std::uint8_t* visible = nullptr;
  std::uint64_t* counts = nullptr;
  std::uint32_t* num_bad = nullptr;
  KeyRecord* records = nullptr;
  KeyTile* found = nullptr;
  KeyTile* tiles = nullptr;
};

/// The bands of one k tile of a head.
class TileBands {
 public:
  __device__ __forceinline__ TileBands(const BlockKeyBuild& build, std::int32_t tile,
                                       std::int32_t head)
      : grid_(build.shape.grid),
        visible_(build.visible + std::int64_t{head} * grid_.num_q() * grid_.num_k()),
        key_begin_(tile * build.shape.tile_keys),
        key_end_(min(key_begin_ + build.shape.tile_keys, grid_.rows_k)) {}

  __device__ __forceinline__ std::int32_t key_begin() const { return key_begin_; }
  __device__ __forceinline__ std::int32_t key_end() const { return key_end_; }

  template <typename Visit>
  __device__ __forceinline__ void visit(std::int32_t block, Visit visit) const {
    if (block >= grid_.num_q()) return;
    const std::uint8_t* row = visible_ + std::int64_t{block} * grid_.num_k();
    for_each_key_band(
        grid_, block, key_begin_, key_end_,
        [&](std::int32_t j) { return static_cast<std::int32_t>(row[j]); }, visit);
  }

  __device__ __forceinline__ std::int32_t count(std::int32_t block) const {
    std::int32_t sum = 0;
    visit(block, [&](const BandSlice&, std::int32_t times) { sum += times; });
    return sum;
  }

 private:
  const BlockGrid& grid_;
  const std::uint8_t* visible_;
  std::int32_t key_begin_;
  std::int32_t key_end_;
};

/// A CTA for each k tile and head of the mask.
__global__ void __launch_bounds__(kTileThreads)
    key_list_kernel(const __grid_constant__ BlockKeyBuild build) {
  __shared__ ScanStorage<std::int32_t, kTileThreads> storage;
  __shared__ std::uint64_t place;
  const auto tile = static_cast<std::int32_t>(blockIdx.x);
  const auto head = static_cast<std::int32_t>(blockIdx.y);
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const std::int32_t num_q = build.shape.grid.num_q();
  const TileBands bands(build, tile, head);
  std::int32_t sum = 0;
  for (std::int32_t block = thread; block < num_q; block += kTileThreads) {
    bands.visit(block, [&](const BandSlice&, std::int32_t times) {
      sum += times;
      if (times > kMostTimes) atomicAdd(build.num_bad, 1u);
    });
  }
  const std::int32_t total = scan_block<kTileThreads>(sum, storage).total;
  if (thread == 0) {
    place = atomicAdd(reinterpret_cast<unsigned long long*>(build.counts + head),
                      static_cast<unsigned long long>(total));
  }
  __syncthreads();
  const bool is_fitting = place + static_cast<std::uint64_t>(total) <=
                          static_cast<std::uint64_t>(build.shape.max_records);
  const std::int32_t begin = is_fitting ? static_cast<std::int32_t>(place) : 0;
  const std::int32_t end = is_fitting ? begin + total : 0;
  if (thread == 0) {
    build.found[head * build.shape.num_tiles() + tile] = {bands.key_begin(), bands.key_end(), begin,
                                                          end};
  }
  if (begin == end) return;
  KeyRecord* records = build.records + head * build.shape.max_records + begin;
  for (std::int32_t base = 0; base < num_q; base += kTileThreads) {
    const auto scan = scan_block<kTileThreads>(bands.count(base + thread), storage);
    KeyRecord* target = records + scan.before;
    bands.visit(base + thread, [&](const BandSlice& band, std::int32_t times) {
      for (std::int32_t i = 0; i < times; ++i) *target++ = {band, 0, 0};
    });
    records += scan.total;
  }
}

/// A CTA for each head of the mask.
__global__ void __launch_bounds__(kLengthBuckets)
    key_order_kernel(const __grid_constant__ BlockKeyBuild build) {
  __shared__ std::int32_t places[kLengthBuckets];
  __shared__ ScanStorage<std::int32_t, kLengthBuckets> storage;
  const std::int32_t num_tiles = build.shape.num_tiles();
  const std::int32_t shift = length_shift(build.shape.grid.num_q());
  const KeyTile* found = build.found + blockIdx.x * num_tiles;
  KeyTile* tiles = build.tiles + blockIdx.x * num_tiles;
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const auto bucket_of = [&](const KeyTile& tile) {
    return length_bucket(tile.record_end - tile.record_begin, shift);
  };
  places[thread] = 0;
  __syncthreads();
  for (std::int32_t i = thread; i < num_tiles; i += kLengthBuckets) {
    atomicAdd(&places[bucket_of(found[i])], 1);
  }
  __syncthreads();
  places[thread] = scan_block<kLengthBuckets>(places[thread], storage).before;
  __syncthreads();
  for (std::int32_t i = thread; i < num_tiles; i += kLengthBuckets) {
    const KeyTile tile = found[i];
    tiles[atomicAdd(&places[bucket_of(tile)], 1)] = tile;
  }
}

}  // namespace

void build_block_key_lists(const BlockKeyShape& shape, const BlockKeyLayout& layout,
                           const std::uint8_t* visible, void* workspace, cudaStream_t stream) {
  const BlockKeyBuild build{.shape = shape,
                            .visible = visible,
                            .counts = part_at<std::uint64_t>(workspace, layout.counts),
                            .num_bad = part_at<std::uint32_t>(workspace, layout.num_bad),
                            .records = part_at<KeyRecord>(workspace, layout.records),
                            .found = part_at<KeyTile>(workspace, layout.found),
                            .tiles = part_at<KeyTile>(workspace, layout.tiles)};
  cuda_check(cudaMemsetAsync(workspace, 0, layout.zeroed_bytes, stream), "cudaMemsetAsync");
  const auto num_tiles = static_cast<unsigned>(shape.num_tiles());
  const auto heads = static_cast<unsigned>(shape.grid.mask_heads);
  if (num_tiles == 0) return;
  key_list_kernel<<<dim3(num_tiles, heads), kTileThreads, 0, stream>>>(build);
  cuda_check(cudaGetLastError(), "key_list_kernel");
  key_order_kernel<<<heads, kLengthBuckets, 0, stream>>>(build);
  cuda_check(cudaGetLastError(), "key_order_kernel");
}

}  // namespace magi
