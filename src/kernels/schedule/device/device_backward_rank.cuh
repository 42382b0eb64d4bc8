// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/schedule/device/device_backward_build.cuh"
#include "kernels/schedule/device/device_rank.cuh"

// Orders few k tiles. Blocks sort them by steps and, at the same time, by component; the first
// order decides which are the tail, and the second how those before it lie.
namespace magi {

/// Orders of the k tiles; a block works on that of its blockIdx.y.
enum class TileOrder : unsigned { BySteps = 0, ByComponent = 1 };
inline constexpr unsigned kTileOrders = 2;

union KeyChunk {
  std::uint64_t keys[kChunkKeys];
  ComponentKey component_keys[kChunkKeys];
  __device__ KeyChunk() {}
};

/// Sorts the k tiles in chunks, one per block.
class TileChunkSorter {
 public:
  __device__ TileChunkSorter(KeyChunk& chunk, const BackwardBuild& build)
      : chunk_(chunk), build_(build) {}

  __device__ void run() {
    const std::int32_t num_tiles = build_.header->outcome.num_tiles;
    const std::int32_t first = static_cast<std::int32_t>(blockIdx.x) * kChunkKeys;
    if (first >= num_tiles) return;
    const std::int32_t tile = first + static_cast<std::int32_t>(threadIdx.x);
    std::uint64_t own = ~std::uint64_t{0};  // after all others
    if (tile < num_tiles) own = build_.sort_keys[0][tile];
    const std::int32_t count = num_tiles - first;
    if (blockIdx.y == static_cast<unsigned>(TileOrder::BySteps)) {
      sort_chunk(chunk_.keys, own, count, build_.sort_keys[1] + first);
    } else {
      const ComponentKey key{component_field(tile, num_tiles), own};
      sort_chunk(chunk_.component_keys, key, count, build_.component_keys + first);
    }
  }

 private:
  /// k tiles without a component come last; also adds to the sum of the components' longest.
  __device__ std::uint64_t component_field(std::int32_t tile, std::int32_t num_tiles) const {
    std::int32_t longest = 0;
    std::int32_t component = -1;
    if (tile < num_tiles) component = build_.tile_component[tile];
    if (component >= 0) longest = build_.longest[component];
    add_of_warp(build_.header->longest_steps, longest);
    const std::int32_t field = component < 0 ? build_.header->num_components : component;
    const std::int32_t below = kMaxTileCost - longest;
    return static_cast<std::uint64_t>(below) << 32 | static_cast<std::uint64_t>(field);
  }

  KeyChunk& chunk_;
  const BackwardBuild& build_;
};

/// k tiles that a block looks up. Keys are long, and each block reads all of them.
inline constexpr std::int32_t kRankedTiles = 64;

/// Sorts all k tiles from chunks; `room`, if it is one, has a key of either kind for each.
template <bool kHasRoom>
__device__ __forceinline__ void rank_tiles(void* room, std::int32_t (&places)[kRankedTiles],
                                           const BackwardBuild& build) {
  const std::int32_t num_tiles = build.header->outcome.num_tiles;
  if (blockIdx.y == static_cast<unsigned>(TileOrder::BySteps)) {
    rank_keys<kHasRoom>(
        build.sort_keys[1], num_tiles, static_cast<std::uint64_t*>(room), places,
        [&](std::uint64_t key, std::int32_t place) { build.sort_keys[0][place] = key; });
  } else {
    rank_keys<kHasRoom>(build.component_keys, num_tiles, static_cast<ComponentKey*>(room), places,
                        [&](const ComponentKey& key, std::int32_t place) {
                          build.by_component[place] = key.tile;
                          build.component_steps[place] =
                              kMaxTileCost - static_cast<std::int32_t>(key.component >> 32);
                        });
  }
}

inline constexpr std::int32_t kArrangedTiles = 64;  ///< that a block writes
inline constexpr std::int32_t kKeysPerThread = kMostRankedKeys / kRankThreads;

/// Counts of k tiles by their splits, up to kMostRankedKeys of each.
struct SplitCounts {
  static constexpr int kBits = 16;
  static_assert(kMostRankedKeys < 1 << kBits && kPlainSplits * kBits == 64);
  std::uint64_t packed = 0;

  __device__ __forceinline__ void add(std::int32_t split) {
    packed += std::uint64_t{1} << (kBits * split);
  }
  __device__ __forceinline__ std::int32_t of(std::int32_t split) const {
    return static_cast<std::int32_t>(packed >> (kBits * split) & ((1u << kBits) - 1));
  }
  /// k tiles of more splits.
  __device__ __forceinline__ std::int32_t above(std::int32_t split) const {
    std::int32_t count = 0;
#pragma unroll
    for (std::int32_t i = 1; i < kPlainSplits; ++i) count += i > split ? of(i) : 0;
    return count;
  }
};

struct ArrangeShared {
  ScanStorage<std::int64_t, kRankThreads> steps;
  ScanStorage<std::uint64_t, kRankThreads> splits;
  ListOrder order;
  PlainWalk walk;
  std::int64_t wanted;  ///< cost of the tail
  std::int32_t tail_begin;
  std::int64_t front_steps;
  std::uint64_t tail_key;               ///< the tail's first
  std::int32_t tiles[kMostRankedKeys];  ///< by place
};

/// Orders the k tiles and their items by plain_rule.hpp. Each block finds the whole order and
/// writes its share.
class TileArranger {
 public:
  __device__ TileArranger(ArrangeShared& shared, const BackwardBuild& build)
      : shared_(shared), build_(build), num_tiles_(build.header->outcome.num_tiles) {
    const std::int32_t chunk = (num_tiles_ + kRankThreads - 1) / kRankThreads;
    begin_ = min(static_cast<std::int32_t>(threadIdx.x) * chunk, num_tiles_);
    end_ = min(begin_ + chunk, num_tiles_);
  }

  __device__ void run() {
    if (static_cast<std::int32_t>(blockIdx.x) * kArrangedTiles >= num_tiles_) return;
    load();
    find_tail();
    place_tiles();
    write();
  }

 private:
  /// Reads all at once: dependent reads would take one trip each.
  __device__ void load() {
#pragma unroll
    for (std::int32_t i = 0; i < kKeysPerThread; ++i) {
      if (begin_ + i >= end_) break;
      keys_[i] = build_.sort_keys[0][begin_ + i];
      component_keys_[i] = build_.by_component[begin_ + i];
    }
    if (threadIdx.x == 0) {
      shared_.tail_begin = 0;
      shared_.front_steps = 0;
      shared_.tail_key = ~std::uint64_t{0};
    }
  }

  __device__ static std::int32_t tile_of(std::uint64_t key) {
    return static_cast<std::int32_t>(key & 0xffffffffu);
  }
  __device__ static std::int64_t steps_of(std::uint64_t key) {
    return kMaxTileCost - static_cast<std::int64_t>(key >> 32);
  }

  /// Finds how items walk and which k tiles are the tail.
  __device__ void find_tail() {
    std::int64_t steps = 0;
#pragma unroll
    for (std::int32_t i = 0; i < kKeysPerThread; ++i) {
      if (begin_ + i < end_) steps += steps_of(keys_[i]);
    }
    const auto scan = scan_block<kRankThreads>(steps, shared_.steps);
    const PlainRule& rule = build_.rule;
    if (threadIdx.x == 0) {
      shared_.walk = walk_of(build_, scan.total);
      shared_.wanted = plain_tail_cost(rule, shared_.walk, build_.header->max_cost);
    }
    __syncthreads();
    const std::int64_t wanted = shared_.wanted;
    std::int64_t front_steps = scan.before;
    unsigned front_tiles = 0;
#pragma unroll
    for (std::int32_t i = 0; i < kKeysPerThread; ++i) {
      if (begin_ + i >= end_) break;
      const std::int64_t up_to = front_steps + steps_of(keys_[i]);
      const std::int64_t behind = (scan.total - up_to) * rule.groups +
                                  std::int64_t{num_tiles_ - begin_ - i - 1} * rule.overhead;
      if (behind * rule.heads_kv < wanted) break;
      ++front_tiles;
      front_steps = up_to;
    }
    __syncwarp();
    const unsigned of_warp = __reduce_add_sync(kFullWarp, front_tiles);
    if (lane_index() == 0) atomicAdd(&shared_.tail_begin, static_cast<std::int32_t>(of_warp));
    __syncthreads();
    const std::int32_t tail_begin = shared_.tail_begin;
    if (begin_ <= tail_begin && tail_begin < end_) {
      shared_.tail_key = build_.sort_keys[0][tail_begin];
    }
    if (begin_ < tail_begin && tail_begin <= end_) shared_.front_steps = front_steps;
    __syncthreads();
  }

  /// The splits of the k tiles before the tail, a field of kSplitBits for each in the order by
  /// components.
  __device__ unsigned splits_in_front() const {
    unsigned splits = 0;
#pragma unroll
    for (std::int32_t i = 0; i < kKeysPerThread; ++i) {
      if (begin_ + i >= end_) break;
      const std::int64_t steps = shared_.walk.is_uneven ? build_.component_steps[begin_ + i]
                                                        : steps_of(component_keys_[i]);
      const auto split =
          static_cast<unsigned>(plain_split(build_.rule, shared_.walk, steps, false));
      splits |= split << (kSplitBits * i);
    }
    return splits;
  }

  /// Places k tiles before the tail by component, those with more splits first, and the others by
  /// steps.
  __device__ void place_tiles() {
    const std::uint64_t tail_key = shared_.tail_key;
    const unsigned splits = splits_in_front();
    const auto split_at = [&](std::int32_t i) {
      return static_cast<std::int32_t>(splits >> (kSplitBits * i) & ((1u << kSplitBits) - 1));
    };
    SplitCounts own;
    SplitCounts of_tail;
#pragma unroll
    for (std::int32_t i = 0; i < kKeysPerThread; ++i) {
      if (begin_ + i >= end_) break;
      if (component_keys_[i] < tail_key) own.add(split_at(i));
      if (keys_[i] >= tail_key) {
        of_tail.add(plain_split(build_.rule, shared_.walk, steps_of(keys_[i]), true));
      }
    }
    const auto scan = scan_block<kRankThreads>(own.packed, shared_.splits);
    of_tail.packed = scan_block<kRankThreads>(of_tail.packed, shared_.splits).total;
    const SplitCounts all{scan.total};
    SplitCounts before{scan.before};
#pragma unroll
    for (std::int32_t i = 0; i < kKeysPerThread; ++i) {
      if (begin_ + i >= end_) break;
      if (component_keys_[i] < tail_key) {
        const std::int32_t split = split_at(i);
        shared_.tiles[all.above(split) + before.of(split)] = tile_of(component_keys_[i]);
        before.add(split);
      }
      if (keys_[i] >= tail_key) shared_.tiles[begin_ + i] = tile_of(keys_[i]);
    }
    if (threadIdx.x == 0) make_order(all, of_tail);
    __syncthreads();
  }

  __device__ void make_order(const SplitCounts& in_front, const SplitCounts& in_tail) const {
    PlainCounts counts;
#pragma unroll
    for (std::int32_t i = 0; i < kPlainSplits; ++i) {
      counts.in_front[i] = in_front.of(i);
      counts.in_tail[i] = in_tail.of(i);
    }
    shared_.order.make(build_, shared_.walk, counts, shared_.front_steps);
    if (blockIdx.x == 0) shared_.order.report(build_, shared_.walk);
  }

  __device__ void write() const {
    // Computed again to save registers.
    const TileSpan& last = shared_.order.spans[kPlainSpans - 1];
    const std::int32_t num_tiles = last.tile_begin + last.num_tiles;
    const std::int32_t place = static_cast<std::int32_t>(blockIdx.x) * kArrangedTiles +
                               static_cast<std::int32_t>(threadIdx.x);
    if (threadIdx.x < kArrangedTiles && place < num_tiles) {
      const std::int32_t tile = shared_.tiles[place];
      build_.tiles[place] = build_.works[tile];
      build_.places[tile] = place;
    }
    const std::int32_t blocks = (num_tiles - 1) / kArrangedTiles + 1;  // that write
    shared_.order.write_items(build_,
                              static_cast<std::int32_t>(blockIdx.x * kRankThreads + threadIdx.x),
                              blocks * kRankThreads);
  }

  static constexpr int kSplitBits = 2;
  static_assert(kPlainSplits == 1 << kSplitBits && kKeysPerThread * kSplitBits <= 32);

  ArrangeShared& shared_;
  const BackwardBuild& build_;
  const std::int32_t num_tiles_;
  std::int32_t begin_;  ///< of the thread's places in both orders
  std::int32_t end_;
  std::uint64_t keys_[kKeysPerThread];            ///< by steps
  std::uint64_t component_keys_[kKeysPerThread];  ///< by component
};

}  // namespace magi
