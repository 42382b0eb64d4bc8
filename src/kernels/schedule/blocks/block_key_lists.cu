// SPDX-License-Identifier: Apache-2.0

#include "cuda/arena.hpp"
#include "cuda/check.hpp"
#include "kernels/schedule/blocks/block_key_lists.hpp"
#include "kernels/schedule/blocks/block_seen.cuh"
#include "kernels/schedule/blocks/mask_chunks.cuh"
#include "kernels/schedule/device/device_build.cuh"

namespace magi {
namespace {

constexpr int kTileWarps = kTileThreads / kWarpLanes;
constexpr int kMostTiles = kWarpLanes;    // of a CTA: lanes take the tiles' places
constexpr int kMostColumns = kWarpLanes;  // blocks of keys of a CTA, unless one tile has more
constexpr int kFewTiles = 8;              // of a CTA, if tiles are too few for all multiprocessors
constexpr int kFewCtas = 192;             // which are then fewer than this
constexpr int kRowGroups = 128;           // of kWarpLanes blocks of queries,
constexpr int kStageBlocks = kRowGroups * kWarpLanes;  // which are in shared memory at a time
constexpr int kGroupPitch = kMostColumns + 1;  // odd: no bank conflicts along rows or columns
constexpr int kPartRows = 16;                  // rows that a lane lists at a time, at least
constexpr int kListRows = kPartRows * kWarpLanes;

/// The state that the warps of a CTA share.
struct StripShared {
  unsigned seen[kRowGroups * kGroupPitch];  ///< by group of rows and column: a bit for each row
  std::uint16_t lists[kTileWarps][kListRows];
  std::int32_t counts[kMostTiles];  ///< records of the tiles
  std::int32_t places[kMostTiles];  ///< the place of a tile's next record; -1: no room
};

/// Transposes 32 words of 32 bits: bit i of lane j becomes bit j of lane i.
__device__ __forceinline__ unsigned transpose_bits(unsigned word) {
  unsigned kept = 0x0000ffffu;
#pragma unroll
  for (int distance = kWarpLanes / 2; distance > 0; distance /= 2) {
    const unsigned other = __shfl_xor_sync(kFullWarp, word, distance);
    word = (lane_index() & distance) != 0 ? (word & ~kept) | (other >> distance & kept)
                                          : (word & kept) | (other << distance & ~kept);
    kept ^= kept << distance / 2;
  }
  return word;
}

/// The blocks that up to kStageBlocks blocks of queries (the rows) see in neighbouring k tiles of a
/// head, which a CTA lists.
class MaskStage {
 public:
  __device__ __forceinline__ MaskStage(const BlockKeyBuild& build, std::int32_t first_tile,
                                       std::int32_t num_tiles, StripShared& shared)
      : build_(build), seen_(shared.seen) {
    const BlockGrid& grid = build.shape.grid;
    const std::int32_t key_begin = first_tile * build.shape.tile_keys;
    const std::int32_t key_end = min(key_begin + num_tiles * build.shape.tile_keys, grid.rows_k);
    first_column_ = key_begin / grid.k_block;
    num_columns_ = (key_end - 1) / grid.k_block + 1 - first_column_;
  }

  /// The whole CTA calls it.
  __device__ __forceinline__ void load(std::int32_t first_block) {
    first_block_ = first_block;
    num_rows_ = min(build_.num_q - first_block, kStageBlocks);
    __syncthreads();
    unsigned above = 0;
    if (has_bits()) {
#pragma unroll 1
      for (std::int32_t group = warp_index(); group < num_groups(); group += 2 * kTileWarps) {
        // Both groups are loading before the first is awaited.
        const std::int32_t row = group * kWarpLanes + lane_index();
        const LoadedRow first = load_row(row);
        const LoadedRow second = load_row(row + kTileThreads);
        put_bits(group, bits_of(first, row, above));
        if (group + kTileWarps >= num_groups()) break;
        put_bits(group + kTileWarps, bits_of(second, row + kTileThreads, above));
      }
    }
    is_once_ = __syncthreads_or(above != 0 ? 1 : 0) == 0 && has_bits();
  }

  __device__ __forceinline__ std::int32_t first_block() const { return first_block_; }
  __device__ __forceinline__ std::int32_t num_rows() const { return num_rows_; }
  __device__ __forceinline__ std::int32_t num_groups() const {
    return (num_rows_ + kWarpLanes - 1) / kWarpLanes;
  }
  /// Whether all entries so far are 0 or 1.
  __device__ __forceinline__ bool is_once() const { return is_once_; }

  /// The rows of a group that see a block of [first_column, end_column); all rows if that is not
  /// known.
  __device__ __forceinline__ unsigned seen_by(std::int32_t group, std::int32_t first_column,
                                              std::int32_t end_column) const {
    if (!has_bits()) return low_bits(num_rows_ - group * kWarpLanes);
    unsigned seen = 0;
#pragma unroll 1
    for (std::int32_t j = first_column; j < end_column; ++j) seen |= word_at(group, j);
    return seen;
  }
  /// The number of times that a row sees a block of keys.
  __device__ __forceinline__ std::int32_t times_at(std::int32_t row, std::int32_t column) const {
    if (has_bits()) {
      const unsigned seen = word_at(row / kWarpLanes, column) >> row % kWarpLanes & 1u;
      if (is_once_ || seen == 0) return static_cast<std::int32_t>(seen);
    }
    return __ldg(bytes_at(row, column));
  }

 private:
  /// A tile of very small blocks has too many.
  __device__ __forceinline__ bool has_bits() const { return num_columns_ <= kMostColumns; }
  __device__ __forceinline__ unsigned word_at(std::int32_t group, std::int32_t column) const {
    return seen_[group * kGroupPitch + column - first_column_];
  }

  __device__ __forceinline__ const std::uint8_t* bytes_at(std::int32_t row,
                                                          std::int32_t column) const {
    const std::int64_t list = std::int64_t{blockIdx.y} * build_.num_q + (first_block_ + row);
    return build_.mask.begin + list * build_.num_k + column;
  }

  static constexpr int kMostChunks = kMostColumns / kChunkBytes + 1;
  struct LoadedRow {
    uint4 chunks[kMostChunks];
    std::int32_t num_skipped;
    bool is_by_bytes;
  };
  /// Loads row `row`; nothing if it is past the last.
  __device__ __forceinline__ LoadedRow load_row(std::int32_t row) const {
    const MaskChunks chunks(bytes_at(row, first_column_), num_columns_);
    const bool is_row = row < num_rows_;
    const bool is_inside = chunks.are_inside(build_.mask);
    LoadedRow loaded;
#pragma unroll
    for (int i = 0; i < kMostChunks; ++i) {
      loaded.chunks[i] = is_row && is_inside ? chunks.load(i) : uint4{};
    }
    loaded.num_skipped = chunks.num_skipped();
    loaded.is_by_bytes = is_row && !is_inside;
    return loaded;
  }
  /// The columns that a row sees, a bit for each. Makes `above` other than 0 if some entry may be
  /// above 1.
  __device__ __forceinline__ unsigned bits_of(const LoadedRow& loaded, std::int32_t row,
                                              unsigned& above) const {
    if (loaded.is_by_bytes) return load_bytes(bytes_at(row, first_column_), above);
    std::uint64_t bits = 0;
#pragma unroll
    for (int i = 0; i < kMostChunks; ++i) {
      above |= bits_above_one(loaded.chunks[i]);
      bits |= std::uint64_t{nonzero_bits(loaded.chunks[i])} << i * kChunkBytes;
    }
    return static_cast<unsigned>(bits >> loaded.num_skipped) & low_bits(num_columns_);
  }
  __device__ __forceinline__ void put_bits(std::int32_t group, unsigned bits) const {
    seen_[group * kGroupPitch + lane_index()] = transpose_bits(bits);
  }
  __device__ __forceinline__ unsigned load_bytes(const std::uint8_t* bytes, unsigned& above) const {
    unsigned bits = 0;
#pragma unroll 1
    for (std::int32_t i = 0; i < num_columns_; ++i) {
      const std::uint8_t times = __ldg(bytes + i);
      above |= times > 1 ? 1u : 0u;
      bits |= times > 0 ? 1u << i : 0u;
    }
    return bits;
  }

  const BlockKeyBuild& build_;
  unsigned* seen_;
  std::int32_t first_column_;
  std::int32_t num_columns_;
  std::int32_t first_block_ = 0;
  std::int32_t num_rows_ = 0;
  bool is_once_ = false;
};

/// One k tile of a head and the rows of a stage that see some of it. A warp lists these, so that
/// all its lanes have rows to work on.
class TileRows {
 public:
  __device__ __forceinline__ TileRows(const BlockKeyBuild& build, const MaskStage& stage,
                                      std::int32_t tile, std::uint16_t (&list)[kListRows])
      : grid_(build.shape.grid),
        stage_(stage),
        list_(list),
        key_begin_(tile * build.shape.tile_keys),
        key_end_(min(key_begin_ + build.shape.tile_keys, grid_.rows_k)),
        first_column_(key_begin_ / grid_.k_block),
        end_column_((key_end_ - 1) / grid_.k_block + 1) {}

  /// Whether counting found an entry that is too large.
  __device__ __forceinline__ bool is_bad() const {
    return __any_sync(kFullWarp, most_times_ > kMostTimes);
  }

 protected:
  /// Skips rows before `first_row`. Returns the number of the others that see something.
  __device__ __forceinline__ std::int32_t open(std::int32_t first_row) {
    first_row_ = first_row;
    std::int32_t sum = 0;
#pragma unroll 2
    for (std::int32_t i = lane_index(); i < stage_.num_groups(); i += kWarpLanes) {
      sum += __popc(seen_by(i));
    }
    sum = add_over_warp(sum);
    // If all rows fit the list, they are listed at once.
    const std::int32_t parts_of_lane = (num_parts() + kWarpLanes - 1) / kWarpLanes;
    parts_per_lane_ = sum <= kListRows ? parts_of_lane : 1;
    return sum;
  }

  /// Lists the rows, ascending, a list at a time, and calls visit(its number of rows).
  template <typename Visit>
  __device__ __forceinline__ void for_each_list(Visit visit) const {
#pragma unroll 1
    for (std::int32_t first = 0; first < num_parts(); first += kWarpLanes * parts_per_lane_) {
      const std::int32_t begin = first + lane_index() * parts_per_lane_;
      const std::int32_t end = min(begin + parts_per_lane_, num_parts());
      std::int32_t own = 0;
#pragma unroll 1
      for (std::int32_t part = begin; part < end; ++part) own += __popc(seen_by_part(part));
      const std::int32_t up_to = scan_warp(own, Sum{});
      std::int32_t place = up_to - own;
#pragma unroll 1
      for (std::int32_t part = begin; part < end; ++part) {
#pragma unroll 1
        for (unsigned seen = seen_by_part(part); seen != 0; seen &= seen - 1) {
          const std::int32_t row = part * kPartRows + __ffs(static_cast<int>(seen)) - 1;
          list_[place++] = static_cast<std::uint16_t>(row);
        }
      }
      __syncwarp();
      visit(__shfl_sync(kFullWarp, up_to, kWarpLanes - 1));
      __syncwarp();
    }
  }

  __device__ __forceinline__ std::int32_t block_of(std::int32_t row) const {
    return stage_.first_block() + row;
  }
  __device__ __forceinline__ std::int32_t times_at(std::int32_t row, std::int32_t column) {
    const std::int32_t times = stage_.times_at(row, column);
    most_times_ = max(most_times_, times);
    return times;
  }
  __device__ __forceinline__ static std::int32_t add_over_warp(std::int32_t value) {
    return static_cast<std::int32_t>(__reduce_add_sync(kFullWarp, static_cast<unsigned>(value)));
  }

  const BlockGrid& grid_;
  const MaskStage& stage_;
  std::uint16_t* list_;
  std::int32_t key_begin_;
  std::int32_t key_end_;
  std::int32_t first_column_;
  std::int32_t end_column_;

 private:
  __device__ __forceinline__ std::int32_t num_parts() const {
    return (stage_.num_rows() + kPartRows - 1) / kPartRows;
  }
  __device__ __forceinline__ unsigned seen_by(std::int32_t group) const {
    return stage_.seen_by(group, first_column_, end_column_) &
           ~low_bits(first_row_ - group * kWarpLanes);
  }
  __device__ __forceinline__ unsigned seen_by_part(std::int32_t part) const {
    constexpr std::int32_t kParts = kWarpLanes / kPartRows;
    return seen_by(part / kParts) >> part % kParts * kPartRows & ((1u << kPartRows) - 1);
  }

  std::int32_t first_row_ = 0;
  std::int32_t parts_per_lane_ = 1;
  std::int32_t most_times_ = 0;
};

/// Marks a tile whose keys lie in one block: a row has one band per time that it sees the block.
class OneBlockBands : public TileRows {
 public:
  __device__ __forceinline__ OneBlockBands(const BlockKeyBuild& build, const MaskStage& stage,
                                           std::int32_t tile, std::uint16_t (&list)[kListRows])
      : TileRows(build, stage, tile, list) {
    end_column_ = first_column_ + 1;
    if (grid_.is_causal) {
      const std::int32_t first_query = max(key_begin_ + grid_.rows_q - grid_.rows_k, 0);
      first_reaching_ = first_query / grid_.q_block - stage.first_block();
    }
    // Entries that are too large are told of in other rows, too.
    num_listed_ = open(stage.is_once() ? first_reaching_ : 0);
  }

  /// Counts the records of all rows.
  __device__ __forceinline__ std::int32_t count() {
    if (stage_.is_once()) return num_listed_;
    std::int32_t sum = 0;
    for_each_list([&](std::int32_t num_listed) {
#pragma unroll 1
      for (std::int32_t i = lane_index(); i < num_listed; i += kWarpLanes) sum += times(list_[i]);
    });
    return add_over_warp(sum);
  }

  /// Writes them from `records` on, row after row. Returns their end.
  __device__ __forceinline__ KeyRecord* write(KeyRecord* records) {
    for_each_list([&](std::int32_t num_listed) {
      if (stage_.is_once()) {
        write_once(records, num_listed);
        records += num_listed;
      } else {
        records = write_times(records, num_listed);
      }
    });
    return records;
  }

 private:
  __device__ __forceinline__ std::int32_t times(std::int32_t row) {
    const std::int32_t times = times_at(row, first_column_);
    return row >= first_reaching_ ? times : 0;
  }
  __device__ __forceinline__ BandSlice band(std::int32_t row) const {
    const std::int32_t block = block_of(row);
    return shrink(BandSlice{block * grid_.q_block, grid_.last_row(block) + 1, key_begin_, key_end_,
                            -kBandInfinity,
                            grid_.is_causal ? grid_.rows_k - grid_.rows_q : kBandInfinity});
  }

  /// Two lanes write a record, so that neighbours write neighbouring halves.
  __device__ __forceinline__ void write_once(KeyRecord* records, std::int32_t num_listed) const {
    static_assert(sizeof(KeyRecord) == 2 * sizeof(int4));
    auto* halves = reinterpret_cast<int4*>(records);
#pragma unroll 1
    for (std::int32_t i = lane_index(); i < 2 * num_listed; i += kWarpLanes) {
      const BandSlice own = band(list_[i / 2]);
      halves[i] =
          i % 2 == 0 ? int4{own.q0, own.q1, own.k0, own.k1} : int4{own.d_min, own.d_max, 0, 0};
    }
  }
  __device__ __forceinline__ KeyRecord* write_times(KeyRecord* records, std::int32_t num_listed) {
#pragma unroll 1
    for (std::int32_t base = 0; base < num_listed; base += kWarpLanes) {
      const std::int32_t index = base + lane_index();
      const std::int32_t row = index < num_listed ? list_[index] : 0;
      const std::int32_t own = index < num_listed ? times(row) : 0;
      const std::int32_t up_to = scan_warp(own, Sum{});
      const KeyRecord record{band(row), 0, 0};
#pragma unroll 1
      for (std::int32_t i = up_to - own; i < up_to; ++i) records[i] = record;
      records += __shfl_sync(kFullWarp, up_to, kWarpLanes - 1);
    }
    return records;
  }

  std::int32_t first_reaching_ = 0;  ///< row of the stage that may see a key of the tile
  std::int32_t num_listed_ = 0;
};

/// Marks any tile.
class ManyBlockBands : public TileRows {
 public:
  __device__ __forceinline__ ManyBlockBands(const BlockKeyBuild& build, const MaskStage& stage,
                                            std::int32_t tile, std::uint16_t (&list)[kListRows])
      : TileRows(build, stage, tile, list) {
    open(0);
  }

  __device__ __forceinline__ std::int32_t count() {
    std::int32_t sum = 0;
    for_each_list([&](std::int32_t num_listed) {
#pragma unroll 1
      for (std::int32_t i = lane_index(); i < num_listed; i += kWarpLanes) sum += count(list_[i]);
    });
    return add_over_warp(sum);
  }

  __device__ __forceinline__ KeyRecord* write(KeyRecord* records) {
    for_each_list([&](std::int32_t num_listed) {
#pragma unroll 1
      for (std::int32_t base = 0; base < num_listed; base += kWarpLanes) {
        const std::int32_t index = base + lane_index();
        const std::int32_t own = index < num_listed ? count(list_[index]) : 0;
        const std::int32_t up_to = scan_warp(own, Sum{});
        if (own > 0) write_row(list_[index], records + (up_to - own));
        records += __shfl_sync(kFullWarp, up_to, kWarpLanes - 1);
      }
    });
    return records;
  }

 private:
  template <typename Visit>
  __device__ __forceinline__ void visit_bands(std::int32_t row, Visit visit) {
    for_each_key_band(
        grid_, block_of(row), key_begin_, key_end_,
        [&](std::int32_t j) { return times_at(row, j); }, visit);
  }
  __device__ __forceinline__ std::int32_t count(std::int32_t row) {
    std::int32_t sum = 0;
    visit_bands(row, [&](const BandSlice&, std::int32_t times) { sum += times; });
    return sum;
  }
  __device__ __forceinline__ void write_row(std::int32_t row, KeyRecord* target) {
    visit_bands(row, [&](const BandSlice& band, std::int32_t times) {
      for (std::int32_t i = 0; i < times; ++i) *target++ = {band, 0, 0};
    });
  }
};

/// Takes the places of a strip's records among the head's, and writes its tiles. One warp calls, so
/// that a strip adds once to the counters that all CTAs of a head share.
__device__ void take_places(const BlockKeyBuild& build, std::int32_t first_tile,
                            std::int32_t num_tiles, StripShared& shared) {
  const auto head = static_cast<std::int32_t>(blockIdx.y);
  const std::int32_t lane = lane_index();
  const std::int32_t count = lane < num_tiles ? shared.counts[lane] : 0;
  const auto up_to = scan_warp(static_cast<unsigned long long>(count), Sum{});
  unsigned long long place = 0;
  if (lane == kWarpLanes - 1) {
    place = atomicAdd(reinterpret_cast<unsigned long long*>(build.counts + head), up_to);
  }
  place = __shfl_sync(kFullWarp, place, kWarpLanes - 1) + up_to - static_cast<unsigned>(count);
  const bool is_fitting = place + static_cast<unsigned>(count) <=
                          static_cast<unsigned long long>(build.shape.max_records);
  if (lane >= num_tiles) return;
  const std::int32_t tile = first_tile + lane;
  const std::int32_t key_begin = tile * build.shape.tile_keys;
  const std::int32_t key_end = min(key_begin + build.shape.tile_keys, build.shape.grid.rows_k);
  const std::int32_t begin = is_fitting ? static_cast<std::int32_t>(place) : 0;
  build.found[head * build.shape.num_tiles() + tile] = {key_begin, key_end, begin,
                                                        is_fitting ? begin + count : begin};
  shared.places[lane] = is_fitting ? begin : -1;
}

/// A CTA per strip of k tiles and head of the mask; each of its warps takes every eighth tile.
template <typename Bands>
__global__ void __launch_bounds__(kTileThreads, 4)
    key_list_kernel(const __grid_constant__ BlockKeyBuild build) {
  __shared__ StripShared shared;
  const std::int32_t first_tile = static_cast<std::int32_t>(blockIdx.x) * build.tiles_per_cta;
  const std::int32_t num_tiles = min(build.tiles_per_cta, build.shape.num_tiles() - first_tile);
  const std::int32_t num_q = build.num_q;
  KeyRecord* records = build.records + blockIdx.y * build.shape.max_records;
  MaskStage stage(build, first_tile, num_tiles, shared);
  if (threadIdx.x < kMostTiles) shared.counts[threadIdx.x] = 0;
  unsigned bad_tiles = 0;  // of the warp
  for (std::int32_t first = 0; first < num_q; first += kStageBlocks) {
    stage.load(first);
    for (std::int32_t i = warp_index(); i < num_tiles; i += kTileWarps) {
      Bands bands(build, stage, first_tile + i, shared.lists[warp_index()]);
      const std::int32_t count = bands.count();
      if (lane_index() == 0) shared.counts[i] += count;
      if (bands.is_bad()) bad_tiles |= 1u << i;
    }
  }
  if (bad_tiles != 0 && lane_index() == 0) {
    atomicAdd(build.num_bad, static_cast<unsigned>(__popc(bad_tiles)));
  }
  __syncthreads();
  if (warp_index() == 0) take_places(build, first_tile, num_tiles, shared);
  __syncthreads();
  for (std::int32_t first = 0; first < num_q; first += kStageBlocks) {
    if (num_q > kStageBlocks) stage.load(first);
    for (std::int32_t i = warp_index(); i < num_tiles; i += kTileWarps) {
      if (shared.counts[i] == 0 || shared.places[i] < 0) continue;
      Bands bands(build, stage, first_tile + i, shared.lists[warp_index()]);
      const KeyRecord* end = bands.write(records + shared.places[i]);
      __syncwarp();  // all lanes have read the place
      if (lane_index() == 0) shared.places[i] = static_cast<std::int32_t>(end - records);
    }
  }
}

/// Reports a head's numbers of records and items. If its records had no room, some were not
/// written: then it reports none.
__device__ void publish_outcome(const BlockKeyBuild& build, std::int32_t head) {
  const bool is_fitting = build.counts[head] <= static_cast<std::uint64_t>(build.shape.max_records);
  const std::int32_t num_tiles = build.shape.num_tiles();
  build.outcomes[head] = {
      .num_records = is_fitting ? static_cast<std::int64_t>(build.counts[head]) : 0,
      .num_tiles = num_tiles,
      .num_items = num_tiles * build.shape.num_splits *
                   (build.shape.grid.heads_kv / build.shape.grid.mask_heads),
      .is_overflowing = is_fitting ? 0 : 1,
      .has_unseen = build.shape.marks_seen ? 1 : 0};
}

/// Reports lists that are not valid; others leave the word, which may be the forward's.
__device__ void report_to_caller(const BlockKeyBuild& build) {
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
  if (thread == 0) publish_outcome(build, static_cast<std::int32_t>(blockIdx.x));
  if (thread == 0 && blockIdx.x == 0) report_to_caller(build);
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

/// The most blocks of keys of neighbouring tiles of one CTA.
std::int32_t most_columns(const BlockKeyShape& shape, std::int32_t num_tiles) {
  const std::int32_t keys = num_tiles * shape.tile_keys;
  const std::int32_t k_block = shape.grid.k_block;
  // Strips begin and end with a block, or anywhere inside one.
  return keys % k_block == 0 ? keys / k_block : (keys + k_block - 2) / k_block + 1;
}

/// The k tiles of a CTA: with at most kMostColumns columns of the mask, fewer if CTAs are few.
std::int32_t tiles_per_cta(const BlockKeyShape& shape) {
  std::int32_t tiles = kMostTiles;
  while (tiles > 1 && most_columns(shape, tiles) > kMostColumns) --tiles;
  const std::int64_t all_tiles = std::int64_t{shape.num_tiles()} * shape.grid.mask_heads;
  while (tiles > kFewTiles && all_tiles < std::int64_t{tiles} * kFewCtas) tiles /= 2;
  return tiles;
}

}  // namespace

void build_block_key_lists(const BlockKeyShape& shape, const BlockKeyLayout& layout,
                           const BlockListSource& source, void* workspace, cudaStream_t stream) {
  const std::int64_t num_lists = shape.grid.num_lists();
  const std::int32_t num_k = shape.grid.num_k();
  const BlockKeyBuild build{.shape = shape,
                            .source = source,
                            .counts = part_at<std::uint64_t>(workspace, layout.counts),
                            .num_bad = part_at<std::uint32_t>(workspace, layout.num_bad),
                            .outcomes = part_at<BackwardOutcome>(workspace, layout.outcomes),
                            .records = part_at<KeyRecord>(workspace, layout.records),
                            .found = part_at<KeyTile>(workspace, layout.found),
                            .tiles = part_at<KeyTile>(workspace, layout.tiles),
                            .seen_queries = part_at<std::uint32_t>(workspace, layout.seen_queries),
                            .seen_keys = part_at<std::uint32_t>(workspace, layout.seen_keys),
                            .tiles_per_cta = tiles_per_cta(shape),
                            .mask = {source.visible, source.visible + num_lists * num_k},
                            .num_q = shape.grid.num_q(),
                            .num_k = num_k};
  cuda_check(cudaMemsetAsync(workspace, 0, layout.zeroed_bytes, stream), "cudaMemsetAsync");
  const std::int32_t num_tiles = shape.num_tiles();
  const auto heads = static_cast<unsigned>(shape.grid.mask_heads);
  if (num_tiles == 0) return;
  const auto strips =
      static_cast<unsigned>((num_tiles + build.tiles_per_cta - 1) / build.tiles_per_cta);
  const dim3 grid(strips, heads);
  if (shape.grid.k_block % shape.tile_keys == 0) {
    key_list_kernel<OneBlockBands><<<grid, kTileThreads, 0, stream>>>(build);
  } else {
    key_list_kernel<ManyBlockBands><<<grid, kTileThreads, 0, stream>>>(build);
  }
  cuda_check(cudaGetLastError(), "key_list_kernel");
  key_order_kernel<<<heads, kLengthBuckets, 0, stream>>>(build);
  cuda_check(cudaGetLastError(), "key_order_kernel");
  if (shape.marks_seen) mark_seen_blocks(build, stream);
}

}  // namespace magi
