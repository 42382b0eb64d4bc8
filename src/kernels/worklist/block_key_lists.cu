// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/arena.hpp"
#include "cuda/check.hpp"
#include "kernels/worklist/block_key_lists.hpp"
#include "kernels/worklist/device_build.cuh"

namespace magi {
namespace {

constexpr int kTileThreads = 256;
constexpr int kMostTiles = kTileThreads / kWarpLanes;  // of a CTA: a warp has one
constexpr int kStageBlocks = 512;  // blocks of queries whose part of the mask is in shared memory
constexpr int kStageColumns = 36;  // blocks of keys there at most

/// Arguments of the kernels of a build.
struct BlockKeyBuild {
  BlockKeyShape shape;
  BlockListSource source;
  std::uint64_t* counts = nullptr;
  std::uint32_t* num_bad = nullptr;
  BackwardOutcome* outcomes = nullptr;
  KeyRecord* records = nullptr;
  KeyTile* found = nullptr;
  KeyTile* tiles = nullptr;
  std::int32_t tiles_per_cta = 1;
};

/// Neighbouring k tiles of a head, which a CTA lists, and how often their blocks are seen by
/// kStageBlocks blocks of queries.
class MaskStage {
 public:
  /// `rows`: kStageBlocks * kStageColumns bytes of shared memory.
  __device__ __forceinline__ explicit MaskStage(std::uint8_t* rows) : rows_(rows) {}

  __device__ __forceinline__ void open(const BlockKeyBuild& build, std::int32_t first_tile,
                                       std::int32_t num_tiles, std::int32_t head) {
    const BlockGrid& grid = build.shape.grid;
    const std::int32_t key_begin = first_tile * build.shape.tile_keys;
    const std::int32_t key_end = min(key_begin + num_tiles * build.shape.tile_keys, grid.rows_k);
    num_k_ = grid.num_k();
    visible_ = build.source.visible + std::int64_t{head} * grid.num_q() * num_k_;
    first_column_ = key_begin / grid.k_block;
    num_columns_ = (key_end - 1) / grid.k_block + 1 - first_column_;
    // An odd number of words: no two lanes that read a column meet.
    pitch_ = 4 * ((num_columns_ + 3) / 4 | 1);
  }

  __device__ __forceinline__ void load(std::int32_t first_block, std::int32_t num_blocks) {
    first_block_ = first_block;
    if (!is_staged()) return;
    const std::uint8_t* source = visible_ + std::int64_t{first_block} * num_k_ + first_column_;
    // Columns of a strip are few: a thread loads as many of a row as it can at a time.
    const auto ends = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(source)) |
                      static_cast<std::uint32_t>(num_k_ | num_columns_);
    if (ends % sizeof(uint2) == 0) {
      load_words<uint2>(source, num_blocks);
    } else if (ends % sizeof(unsigned) == 0) {
      load_words<unsigned>(source, num_blocks);
    } else {
      load_words<std::uint8_t>(source, num_blocks);
    }
  }

  __device__ __forceinline__ std::int32_t first_block() const { return first_block_; }
  /// How often the block in a row of the stage sees a block of keys.
  __device__ __forceinline__ std::int32_t times_at(std::int32_t row, std::int32_t column) const {
    if (is_staged()) return rows_[row * pitch_ + column - first_column_];
    return __ldg(visible_ + std::int64_t{first_block_ + row} * num_k_ + column);
  }

 private:
  __device__ __forceinline__ bool is_staged() const { return num_columns_ <= kStageColumns; }

  __device__ __forceinline__ static void put(std::uint8_t* target, std::uint8_t word) {
    *target = word;
  }
  __device__ __forceinline__ static void put(std::uint8_t* target, unsigned word) {
    *reinterpret_cast<unsigned*>(target) = word;
  }
  __device__ __forceinline__ static void put(std::uint8_t* target, uint2 words) {
    put(target, words.x);  // rows begin at multiples of four bytes
    put(target + sizeof(unsigned), words.y);
  }

  template <typename Word>
  __device__ __forceinline__ void load_words(const std::uint8_t* source,
                                             std::int32_t num_blocks) const {
    constexpr auto kBytes = static_cast<std::int32_t>(sizeof(Word));
    const std::int32_t words_per_row = num_columns_ / kBytes;
#pragma unroll 4
    for (auto i = static_cast<std::int32_t>(threadIdx.x); i < num_blocks * words_per_row;
         i += kTileThreads) {
      const std::int32_t row = i / words_per_row;
      const std::int32_t first = (i - row * words_per_row) * kBytes;
      const auto* at = reinterpret_cast<const Word*>(source + std::int64_t{row} * num_k_ + first);
      put(rows_ + row * pitch_ + first, __ldg(at));
    }
  }

  const std::uint8_t* visible_ = nullptr;  ///< of the head
  std::int32_t num_k_ = 0;
  std::int32_t first_column_ = 0;
  std::int32_t num_columns_ = 0;
  std::int32_t pitch_ = 0;
  std::int32_t first_block_ = 0;
  std::uint8_t* rows_;
};

/// The bands of one k tile of a head. By a warp, which lists the blocks that see something, so that
/// all lanes have bands to work at.
class TileBands {
 public:
  __device__ __forceinline__ TileBands(const BlockKeyBuild& build, const MaskStage& stage,
                                       std::int32_t tile, std::uint16_t* list)
      : grid_(build.shape.grid),
        stage_(stage),
        list_(list),
        key_begin_(tile * build.shape.tile_keys),
        key_end_(min(key_begin_ + build.shape.tile_keys, grid_.rows_k)),
        first_column_(key_begin_ / grid_.k_block),
        end_column_((key_end_ - 1) / grid_.k_block + 1) {}

  __device__ __forceinline__ std::int32_t key_begin() const { return key_begin_; }
  __device__ __forceinline__ std::int32_t key_end() const { return key_end_; }

  /// Lists the staged blocks that see a key. Returns whether an entry is too large.
  __device__ __forceinline__ bool list_blocks(std::int32_t num_blocks) {
    bool is_bad = false;
    num_listed_ = 0;
#pragma unroll 4
    for (std::int32_t base = 0; base < num_blocks; base += kWarpLanes) {
      const std::int32_t row = base + lane_index();
      std::int32_t most = 0;
      for (std::int32_t j = first_column_; j < end_column_ && row < num_blocks; ++j) {
        most = max(most, stage_.times_at(row, j));
      }
      is_bad |= most > kMostTimes;
      const unsigned seen = __ballot_sync(kFullWarp, most > 0);
      const std::int32_t place = num_listed_ + __popc(seen & ((1u << lane_index()) - 1));
      if (most > 0) list_[place] = static_cast<std::uint16_t>(row);
      num_listed_ += __popc(seen);
    }
    __syncwarp();
    return __any_sync(kFullWarp, is_bad);
  }

  /// Records of the listed blocks.
  __device__ __forceinline__ std::int32_t count() const {
    std::int32_t sum = 0;
    for (std::int32_t i = lane_index(); i < num_listed_; i += kWarpLanes) sum += count(list_[i]);
    return static_cast<std::int32_t>(__reduce_add_sync(kFullWarp, static_cast<unsigned>(sum)));
  }

  /// Writes them from `records` on, block after block. Returns their end.
  __device__ __forceinline__ KeyRecord* write(KeyRecord* records) const {
    for (std::int32_t base = 0; base < num_listed_; base += kWarpLanes) {
      const std::int32_t index = base + lane_index();
      const std::int32_t own = index < num_listed_ ? count(list_[index]) : 0;
      std::int32_t end = own;
#pragma unroll
      for (int distance = 1; distance < kWarpLanes; distance *= 2) {
        const std::int32_t before = __shfl_up_sync(kFullWarp, end, distance);
        end += lane_index() >= distance ? before : 0;
      }
      KeyRecord* target = records + (end - own);
      if (own > 0) {
        visit(list_[index], [&](const BandSlice& band, std::int32_t times) {
          for (std::int32_t i = 0; i < times; ++i) *target++ = {band, 0, 0};
        });
      }
      records += __shfl_sync(kFullWarp, end, kWarpLanes - 1);
    }
    return records;
  }

 private:
  template <typename Visit>
  __device__ __forceinline__ void visit(std::int32_t row, Visit visit) const {
    for_each_key_band(
        grid_, stage_.first_block() + row, key_begin_, key_end_,
        [&](std::int32_t j) { return stage_.times_at(row, j); }, visit);
  }

  __device__ __forceinline__ std::int32_t count(std::int32_t row) const {
    if (end_column_ - first_column_ == 1) {
      const std::int32_t reached = grid_.key_end(grid_.last_row(stage_.first_block() + row));
      return key_begin_ < reached ? stage_.times_at(row, first_column_) : 0;
    }
    std::int32_t sum = 0;
    visit(row, [&](const BandSlice&, std::int32_t times) { sum += times; });
    return sum;
  }

  const BlockGrid& grid_;
  const MaskStage& stage_;
  std::uint16_t* list_;
  std::int32_t key_begin_;
  std::int32_t key_end_;
  std::int32_t first_column_;
  std::int32_t end_column_;
  std::int32_t num_listed_ = 0;
};

/// Takes the place of a tile's records among the head's and tells of the tile. Returns where they
/// go; null: there is no room, or there are none. By a warp.
__device__ KeyRecord* take_place(const BlockKeyBuild& build, const TileBands& bands,
                                 std::int32_t tile, std::int32_t head, std::int32_t count) {
  unsigned long long place = 0;
  if (lane_index() == 0) {
    place = atomicAdd(reinterpret_cast<unsigned long long*>(build.counts + head),
                      static_cast<unsigned long long>(count));
  }
  place = __shfl_sync(kFullWarp, place, 0);
  const bool is_fitting = place + static_cast<unsigned>(count) <=
                          static_cast<unsigned long long>(build.shape.max_records);
  const std::int32_t begin = is_fitting ? static_cast<std::int32_t>(place) : 0;
  if (lane_index() == 0) {
    build.found[head * build.shape.num_tiles() + tile] = {bands.key_begin(), bands.key_end(), begin,
                                                          is_fitting ? begin + count : begin};
  }
  if (!is_fitting || count == 0) return nullptr;
  return build.records + head * build.shape.max_records + begin;
}

/// A CTA for each strip of k tiles and head of the mask, a warp for a tile.
__global__ void __launch_bounds__(kTileThreads)
    key_list_kernel(const __grid_constant__ BlockKeyBuild build) {
  __shared__ __align__(4) std::uint8_t rows[kStageBlocks * kStageColumns];
  __shared__ std::uint16_t lists[kMostTiles][kStageBlocks];
  const auto head = static_cast<std::int32_t>(blockIdx.y);
  const std::int32_t first_tile = static_cast<std::int32_t>(blockIdx.x) * build.tiles_per_cta;
  const std::int32_t num_tiles = min(build.tiles_per_cta, build.shape.num_tiles() - first_tile);
  const std::int32_t num_q = build.shape.grid.num_q();
  MaskStage stage(rows);
  stage.open(build, first_tile, num_tiles, head);
  const bool has_tile = warp_index() < num_tiles;
  const std::int32_t tile = first_tile + warp_index();
  TileBands bands(build, stage, tile, lists[warp_index()]);
  std::int32_t count = 0;
  bool is_bad = false;
  const auto list_blocks = [&](std::int32_t first) {
    const std::int32_t num_blocks = min(num_q - first, kStageBlocks);
    __syncthreads();
    stage.load(first, num_blocks);
    __syncthreads();
    if (has_tile) is_bad |= bands.list_blocks(num_blocks);
  };
  for (std::int32_t first = 0; first < num_q; first += kStageBlocks) {
    list_blocks(first);
    if (has_tile) count += bands.count();
  }
  KeyRecord* target = has_tile ? take_place(build, bands, tile, head, count) : nullptr;
  if (is_bad && lane_index() == 0) atomicAdd(build.num_bad, 1u);
  for (std::int32_t first = 0; first < num_q; first += kStageBlocks) {
    if (num_q > kStageBlocks) list_blocks(first);
    if (target != nullptr) target = bands.write(target);
  }
}

/// Tells how many records and items a head has. Where there is no room for its records, some were
/// not written: then it has none.
__device__ void tell_outcome(const BlockKeyBuild& build, std::int32_t head) {
  const bool is_fitting = build.counts[head] <= static_cast<std::uint64_t>(build.shape.max_records);
  const std::int32_t num_tiles = build.shape.num_tiles();
  build.outcomes[head] = {
      .num_records = is_fitting ? static_cast<std::int64_t>(build.counts[head]) : 0,
      .num_tiles = num_tiles,
      .num_items = num_tiles * (build.shape.grid.heads_kv / build.shape.grid.mask_heads),
      .is_overflowing = is_fitting ? 0 : 1};
}

/// Lists that do not hold are told of; others leave the word, which may be that of the forward.
__device__ void tell_caller(const BlockKeyBuild& build) {
  std::int64_t* word = build.source.error_word;
  if (word == nullptr) return;
  const BlockKeyOutcome outcome{.counts = build.counts,
                                .num_bad = build.num_bad,
                                .mask_heads = build.shape.grid.mask_heads,
                                .max_records = build.shape.max_records};
  if (outcome.holds()) return;
  word[0] = outcome.num_beyond();
  word[1] = -1;
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
  if (thread == 0 && blockIdx.x == 0) tell_caller(build);
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

/// As many as have about kWarpLanes columns of the mask at most.
std::int32_t tiles_per_cta(const BlockKeyShape& shape) {
  return std::clamp(kWarpLanes * shape.grid.k_block / shape.tile_keys, 1, kMostTiles);
}

}  // namespace

void build_block_key_lists(const BlockKeyShape& shape, const BlockKeyLayout& layout,
                           const BlockListSource& source, void* workspace, cudaStream_t stream) {
  const BlockKeyBuild build{.shape = shape,
                            .source = source,
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
