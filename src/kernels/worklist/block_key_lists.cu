// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/arena.hpp"
#include "cuda/check.hpp"
#include "kernels/worklist/block_key_lists.hpp"
#include "kernels/worklist/device_build.cuh"

namespace magi {
namespace {

constexpr int kTileThreads = 256;
constexpr int kTileWarps = kTileThreads / kWarpLanes;
constexpr int kMostTiles = 32;     // of a CTA
constexpr int kStageBlocks = 512;  // blocks of queries whose part of the mask is in shared memory
constexpr int kStagePitch = 36;    // bytes of a row there: so many words that no two lanes meet

/// Arguments of the kernels of a build.
struct BlockKeyBuild {
  BlockKeyShape shape;
  const std::uint8_t* visible = nullptr;
  std::uint64_t* counts = nullptr;
  std::uint32_t* num_bad = nullptr;
  BackwardOutcome* outcomes = nullptr;
  KeyRecord* records = nullptr;
  KeyTile* found = nullptr;
  KeyTile* tiles = nullptr;
  std::int32_t tiles_per_cta = 1;
};

/// Neighbouring k tiles of a head, which a CTA lists: what they see of the mask.
struct TileStrip {
  const std::uint8_t* visible;  ///< of the head
  std::int32_t first_tile;
  std::int32_t num_tiles;
  std::int32_t first_column;  ///< block of keys
  std::int32_t num_columns;

  __device__ __forceinline__ TileStrip(const BlockKeyBuild& build, std::int32_t strip,
                                       std::int32_t head) {
    const BlockGrid& grid = build.shape.grid;
    visible = build.visible + std::int64_t{head} * grid.num_q() * grid.num_k();
    first_tile = strip * build.tiles_per_cta;
    num_tiles = min(build.tiles_per_cta, build.shape.num_tiles() - first_tile);
    const std::int32_t key_begin = first_tile * build.shape.tile_keys;
    const std::int32_t key_end = min(key_begin + num_tiles * build.shape.tile_keys, grid.rows_k);
    first_column = key_begin / grid.k_block;
    num_columns = (key_end - 1) / grid.k_block + 1 - first_column;
  }
  __device__ __forceinline__ bool is_staged() const { return num_columns <= kStagePitch; }
};

/// How often a strip's blocks are seen by kStageBlocks blocks of queries.
struct MaskStage {
  std::uint8_t rows[kStageBlocks][kStagePitch];

  __device__ __forceinline__ void load(const TileStrip& strip, std::int32_t num_k,
                                       std::int32_t first_block, std::int32_t num_blocks) {
    if (!strip.is_staged()) return;
    const std::uint8_t* source =
        strip.visible + std::int64_t{first_block} * num_k + strip.first_column;
    for (std::int32_t i = lane_index(); i < strip.num_columns; i += kWarpLanes) {
#pragma unroll 8
      for (std::int32_t row = warp_index(); row < num_blocks; row += kTileWarps) {
        rows[row][i] = __ldg(source + std::int64_t{row} * num_k + i);
      }
    }
  }
};

/// The bands of one k tile of a head.
class TileBands {
 public:
  __device__ __forceinline__ TileBands(const BlockKeyBuild& build, const TileStrip& strip,
                                       const MaskStage& stage, std::int32_t tile)
      : grid_(build.shape.grid),
        strip_(strip),
        stage_(stage),
        key_begin_((strip.first_tile + tile) * build.shape.tile_keys),
        key_end_(min(key_begin_ + build.shape.tile_keys, grid_.rows_k)),
        first_column_(key_begin_ / grid_.k_block),
        end_column_((key_end_ - 1) / grid_.k_block + 1) {}

  __device__ __forceinline__ std::int32_t key_begin() const { return key_begin_; }
  __device__ __forceinline__ std::int32_t key_end() const { return key_end_; }

  /// How often block `row` of the stage, which begins with block `first`, sees block `column`.
  __device__ __forceinline__ std::int32_t times_at(std::int32_t first, std::int32_t row,
                                                   std::int32_t column) const {
    if (strip_.is_staged()) return stage_.rows[row][column - strip_.first_column];
    return __ldg(strip_.visible + std::int64_t{first + row} * grid_.num_k() + column);
  }
  __device__ __forceinline__ std::int32_t most_times(std::int32_t first, std::int32_t row) const {
    std::int32_t most = 0;
    for (std::int32_t j = first_column_; j < end_column_; ++j) {
      most = max(most, times_at(first, row, j));
    }
    return most;
  }

  template <typename Visit>
  __device__ __forceinline__ void visit(std::int32_t first, std::int32_t row, Visit visit) const {
    for_each_key_band(
        grid_, first + row, key_begin_, key_end_,
        [&](std::int32_t j) { return times_at(first, row, j); }, visit);
  }

  /// Records of a block of queries.
  __device__ __forceinline__ std::int32_t count(std::int32_t first, std::int32_t row) const {
    if (end_column_ - first_column_ == 1) {
      const std::int32_t times = times_at(first, row, first_column_);
      return key_begin_ < grid_.key_end(grid_.last_row(first + row)) ? times : 0;
    }
    std::int32_t sum = 0;
    visit(first, row, [&](const BandSlice&, std::int32_t times) { sum += times; });
    return sum;
  }

 private:
  const BlockGrid& grid_;
  const TileStrip& strip_;
  const MaskStage& stage_;
  std::int32_t key_begin_;
  std::int32_t key_end_;
  std::int32_t first_column_;
  std::int32_t end_column_;
};

/// Records of a tile that `num_blocks` staged blocks from `first` on need. By a warp.
__device__ std::int32_t count_records(const BlockKeyBuild& build, const TileBands& bands,
                                      std::int32_t first, std::int32_t num_blocks) {
  std::int32_t sum = 0;
  bool is_bad = false;
  for (std::int32_t row = lane_index(); row < num_blocks; row += kWarpLanes) {
    sum += bands.count(first, row);
    is_bad |= bands.most_times(first, row) > kMostTimes;
  }
  if (is_bad) atomicAdd(build.num_bad, 1u);
  return static_cast<std::int32_t>(__reduce_add_sync(kFullWarp, static_cast<unsigned>(sum)));
}

/// Writes them from `records` on, block after block, and returns their end. By a warp, whose list
/// of blocks that see something lets all lanes work at such.
__device__ KeyRecord* write_records(const TileBands& bands, std::int32_t first,
                                    std::int32_t num_blocks, std::uint16_t* list,
                                    KeyRecord* records) {
  std::int32_t num_listed = 0;
  for (std::int32_t base = 0; base < num_blocks; base += kWarpLanes) {
    const std::int32_t row = base + lane_index();
    const bool sees = row < num_blocks && bands.most_times(first, row) > 0;
    const unsigned seen = __ballot_sync(kFullWarp, sees);
    const unsigned before = seen & ((1u << lane_index()) - 1);
    if (sees) list[num_listed + __popc(before)] = static_cast<std::uint16_t>(row);
    num_listed += __popc(seen);
  }
  __syncwarp();
  for (std::int32_t base = 0; base < num_listed; base += kWarpLanes) {
    const std::int32_t index = base + lane_index();
    const std::int32_t row = index < num_listed ? list[index] : -1;
    const std::int32_t own = row < 0 ? 0 : bands.count(first, row);
    std::int32_t end = own;
#pragma unroll
    for (int distance = 1; distance < kWarpLanes; distance *= 2) {
      const std::int32_t before = __shfl_up_sync(kFullWarp, end, distance);
      end += lane_index() >= distance ? before : 0;
    }
    KeyRecord* target = records + (end - own);
    if (own > 0) {
      bands.visit(first, row, [&](const BandSlice& band, std::int32_t times) {
        for (std::int32_t i = 0; i < times; ++i) *target++ = {band, 0, 0};
      });
    }
    records += __shfl_sync(kFullWarp, end, kWarpLanes - 1);
  }
  __syncwarp();
  return records;
}

/// What a CTA knows of its tiles.
struct StripPlaces {
  std::int32_t counts[kMostTiles];
  KeyRecord* targets[kMostTiles];  ///< of the tile's next record; null: there is no room
};

/// Takes the places of a strip's records among the head's, and tells of its tiles. By one warp.
__device__ void take_places(const BlockKeyBuild& build, const TileStrip& strip,
                            const MaskStage& stage, std::int32_t head, StripPlaces& places) {
  const std::int32_t tile = lane_index();
  const std::int32_t count = tile < strip.num_tiles ? places.counts[tile] : 0;
  std::int32_t end = count;
#pragma unroll
  for (int distance = 1; distance < kWarpLanes; distance *= 2) {
    const std::int32_t before = __shfl_up_sync(kFullWarp, end, distance);
    end += lane_index() >= distance ? before : 0;
  }
  unsigned long long place = 0;
  if (tile == kWarpLanes - 1) {
    place = atomicAdd(reinterpret_cast<unsigned long long*>(build.counts + head),
                      static_cast<unsigned long long>(end));
  }
  place = __shfl_sync(kFullWarp, place, kWarpLanes - 1) + static_cast<unsigned>(end - count);
  if (tile >= strip.num_tiles) return;
  const bool is_fitting = place + static_cast<unsigned>(count) <=
                          static_cast<unsigned long long>(build.shape.max_records);
  const std::int32_t begin = is_fitting ? static_cast<std::int32_t>(place) : 0;
  places.targets[tile] =
      is_fitting && count > 0 ? build.records + head * build.shape.max_records + begin : nullptr;
  const TileBands bands(build, strip, stage, tile);
  build.found[head * build.shape.num_tiles() + strip.first_tile + tile] = {
      bands.key_begin(), bands.key_end(), begin, is_fitting ? begin + count : begin};
}

/// A CTA for each strip of k tiles and head of the mask, a warp for a tile.
__global__ void __launch_bounds__(kTileThreads)
    key_list_kernel(const __grid_constant__ BlockKeyBuild build) {
  __shared__ MaskStage stage;
  __shared__ StripPlaces places;
  __shared__ std::uint16_t lists[kTileWarps][kStageBlocks];
  const auto head = static_cast<std::int32_t>(blockIdx.y);
  const TileStrip strip(build, static_cast<std::int32_t>(blockIdx.x), head);
  const std::int32_t num_q = build.shape.grid.num_q();
  const std::int32_t num_k = build.shape.grid.num_k();
  for (std::int32_t tile = warp_index(); tile < strip.num_tiles; tile += kTileWarps) {
    if (lane_index() == 0) places.counts[tile] = 0;
  }
  for (std::int32_t first = 0; first < num_q; first += kStageBlocks) {
    const std::int32_t num_blocks = min(num_q - first, kStageBlocks);
    __syncthreads();
    stage.load(strip, num_k, first, num_blocks);
    __syncthreads();
    for (std::int32_t tile = warp_index(); tile < strip.num_tiles; tile += kTileWarps) {
      const TileBands bands(build, strip, stage, tile);
      const std::int32_t count = count_records(build, bands, first, num_blocks);
      if (lane_index() == 0) places.counts[tile] += count;
    }
  }
  __syncthreads();
  if (warp_index() == 0) take_places(build, strip, stage, head, places);
  __syncthreads();
  for (std::int32_t first = 0; first < num_q; first += kStageBlocks) {
    const std::int32_t num_blocks = min(num_q - first, kStageBlocks);
    if (num_q > kStageBlocks) {
      __syncthreads();
      stage.load(strip, num_k, first, num_blocks);
      __syncthreads();
    }
    for (std::int32_t tile = warp_index(); tile < strip.num_tiles; tile += kTileWarps) {
      KeyRecord* target = places.targets[tile];
      if (target == nullptr) continue;
      const TileBands bands(build, strip, stage, tile);
      target = write_records(bands, first, num_blocks, lists[warp_index()], target);
      if (lane_index() == 0) places.targets[tile] = target;
    }
  }
}

/// Where records have no room, the places of others are not written: none is told of.
__device__ void tell_outcome(const BlockKeyBuild& build, std::int32_t head) {
  const bool is_fitting = build.counts[head] <= static_cast<std::uint64_t>(build.shape.max_records);
  const std::int32_t num_tiles = build.shape.num_tiles();
  build.outcomes[head] = {
      .num_records = is_fitting ? static_cast<std::int64_t>(build.counts[head]) : 0,
      .num_tiles = num_tiles,
      .num_items = num_tiles * (build.shape.grid.heads_kv / build.shape.grid.mask_heads),
      .is_overflowing = is_fitting ? 0 : 1};
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
  if (thread == 0) tell_outcome(build, static_cast<std::int32_t>(blockIdx.x));
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

namespace {

/// As many as have about kWarpLanes columns of the mask.
std::int32_t tiles_per_cta(const BlockKeyShape& shape) {
  return std::clamp(kWarpLanes * shape.grid.k_block / shape.tile_keys, 1, kMostTiles);
}

}  // namespace

void build_block_key_lists(const BlockKeyShape& shape, const BlockKeyLayout& layout,
                           const std::uint8_t* visible, void* workspace, cudaStream_t stream) {
  const BlockKeyBuild build{.shape = shape,
                            .visible = visible,
                            .counts = part_at<std::uint64_t>(workspace, layout.counts),
                            .num_bad = part_at<std::uint32_t>(workspace, layout.num_bad),
                            .outcomes = part_at<BackwardOutcome>(workspace, layout.outcomes),
                            .records = part_at<KeyRecord>(workspace, layout.records),
                            .found = part_at<KeyTile>(workspace, layout.found),
                            .tiles = part_at<KeyTile>(workspace, layout.tiles),
                            .tiles_per_cta = tiles_per_cta(shape)};
  cuda_check(cudaMemsetAsync(workspace, 0, layout.zeroed_bytes, stream), "cudaMemsetAsync");
  const std::int32_t num_tiles = shape.num_tiles();
  const auto heads = static_cast<unsigned>(shape.grid.mask_heads);
  if (num_tiles == 0) return;
  const auto strips =
      static_cast<unsigned>((num_tiles + build.tiles_per_cta - 1) / build.tiles_per_cta);
  key_list_kernel<<<dim3(strips, heads), kTileThreads, 0, stream>>>(build);
  cuda_check(cudaGetLastError(), "key_list_kernel");
  key_order_kernel<<<heads, kLengthBuckets, 0, stream>>>(build);
  cuda_check(cudaGetLastError(), "key_order_kernel");
}

}  // namespace magi
