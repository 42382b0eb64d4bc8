// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/schedule/device/device_backward_build.cuh"

namespace magi {

/// Also holds the state of threads between sorts, as registers are few.
struct PlainSortShared {
  union {
    SortShared sort;
    ClusterScanShared<std::int64_t> steps;
  };
  std::uint64_t* keys;       ///< the first ones, sorted
  std::uint64_t* room;       ///< for as many keys
  std::uint64_t* tail_keys;  ///< the keys after them, where the first sort left them
  ListOrder order;
  PlainWalk walk;
  std::int64_t wanted;  ///< cost of the tail

  __device__ PlainSortShared() {}
};

/// Orders the k tiles and their items by plain_rule.hpp, in one cluster of kCtas.
template <int kCtas>
class PlainSorter {
 public:
  __device__ PlainSorter(PlainSortShared& shared, const BackwardBuild& build)
      : shared_(shared), build_(build) {
    if (threadIdx.x == 0) {
      shared.keys = build.sort_keys[0];
      shared.room = build.sort_keys[1];
      shared.tail_keys = nullptr;
    }
    __syncthreads();
  }

  /// Sorts by steps, then before the tail by component, then by the longest of the component, with
  /// one piece of code to save registers.
  __device__ void run() {
#pragma unroll 1
    for (int stage = 0; stage < kStages; ++stage) {
      sort(stage);
      if (stage == 0) find_order();
      if (build_.header->num_components <= 1) break;
      if (stage + 1 < kStages) rekey(stage == 0);
    }
    write();
  }

 private:
  static constexpr int kStages = 3;

  __device__ std::int32_t num_tiles() const { return build_.header->outcome.num_tiles; }

  /// All keys; after the first stage only those before the tail.
  __device__ SortJob job_of(int stage) const {
    const DeviceBackwardHeader& header = *build_.header;
    const std::uint32_t first_least = static_cast<std::uint32_t>(kMaxTileCost - header.max_cost);
    const std::int32_t most = stage == 0   ? header.max_cost_inverse
                              : stage == 1 ? header.num_components
                                           : header.max_cost;
    return {stage == 0 ? num_tiles() : shared_.order.tail_begin, stage == 0 ? first_least : 0u,
            static_cast<std::uint32_t>(most), shared_.keys, shared_.room};
  }

  __device__ void sort(int stage) {
    std::uint64_t* sorted = TileSorter<kCtas>(shared_.sort, job_of(stage)).run();
    __syncthreads();
    if (threadIdx.x == 0) {
      if (sorted != shared_.keys) {
        shared_.room = shared_.keys;
        shared_.keys = sorted;
      }
      if (stage == 0) shared_.tail_keys = sorted;
    }
    Cluster<kCtas>::sync();
  }

  __device__ static std::int32_t tile_of(std::uint64_t key) {
    return static_cast<std::int32_t>(key & 0xffffffffu);
  }
  __device__ std::int64_t steps_at(std::int32_t place) const {
    return kMaxTileCost - static_cast<std::int64_t>(shared_.tail_keys[place] >> 32);
  }
  __device__ std::int32_t longest_of(std::int32_t tile) const {
    const std::int32_t component = build_.tile_component[tile];
    return component < 0 ? 0 : build_.longest[component];
  }

  /// Finds where the tail begins among the k tiles sorted by steps.
  __device__ void find_order() {
    DeviceBackwardHeader& header = *build_.header;
    const Range share = own_share<kCtas>(num_tiles());
    std::int64_t steps = 0;
    std::int64_t longest = 0;
#pragma unroll 1
    for (std::int32_t i = share.begin; i < share.end; ++i) {
      steps += steps_at(i);
      longest += longest_of(tile_of(shared_.tail_keys[i]));
    }
    add_of_warp(header.longest_steps, longest);
    const auto scan = scan_cluster<kCtas>(shared_.steps, steps, std::int64_t{0}, Sum{});
    // After the barriers of the scan the sum of the longest is complete; those of the head are not.
    if (threadIdx.x == 0) {
      shared_.walk = walk_of(build_, scan.total);
      shared_.wanted = plain_tail_cost(build_.rule, shared_.walk, header.max_cost);
    }
    __syncthreads();
    add_head(share, scan.total - scan.before);
    Cluster<kCtas>::sync();
    if (threadIdx.x == 0) {
      ListOrder& order = shared_.order;
      order.tail_begin = static_cast<std::int32_t>(__ldcg(&header.head_tiles));
      PlainCounts counts;  // such long lists have no splits
      counts.in_front[0] = order.tail_begin;
      counts.in_tail[0] = num_tiles() - order.tail_begin;
      order.make(build_, shared_.walk, counts,
                 static_cast<std::int64_t>(__ldcg(&header.head_steps)));
      if (thread_of_cluster<kCtas>() == 0) order.report(build_, shared_.walk);
    }
    __syncthreads();
  }

  /// Adds the k tiles of a share that lie before the tail; `steps`: from the share on.
  __device__ void add_head(const Range& share, std::int64_t steps) const {
    const PlainRule& rule = build_.rule;
    const std::int64_t wanted = shared_.wanted;
    std::int64_t head_tiles = 0;
    std::int64_t head_steps = 0;
#pragma unroll 1
    for (std::int32_t i = share.begin; i < share.end; ++i) {
      steps -= steps_at(i);
      const std::int64_t behind =
          steps * rule.groups + std::int64_t{num_tiles() - i - 1} * rule.overhead;
      if (behind * rule.heads_kv < wanted) break;
      ++head_tiles;
      head_steps += steps_at(i);
    }
    __syncwarp();
    add_of_warp(build_.header->head_tiles, head_tiles);
    add_of_warp(build_.header->head_steps, head_steps);
  }

  /// Changes the sort field of the keys before the tail.
  __device__ void rekey(bool is_by_component) {
    const std::int32_t count = shared_.order.tail_begin;
#pragma unroll 1
    for (std::int32_t i = thread_of_cluster<kCtas>(); i < count; i += kCtas * kOrderThreads) {
      const std::int32_t tile = tile_of(shared_.keys[i]);
      const std::int32_t component = build_.tile_component[tile];
      const std::int32_t last = component < 0 ? build_.header->num_components : component;
      const std::int32_t field =
          is_by_component ? last : build_.header->max_cost - longest_of(tile);
      shared_.keys[i] = static_cast<std::uint64_t>(field) << 32 | static_cast<std::uint64_t>(tile);
    }
    Cluster<kCtas>::sync();
  }

  __device__ void write() const {
    const std::int32_t tail_begin = shared_.order.tail_begin;
#pragma unroll 1
    for (std::int32_t i = thread_of_cluster<kCtas>(); i < num_tiles(); i += kCtas * kOrderThreads) {
      const std::int32_t tile = tile_of(i < tail_begin ? shared_.keys[i] : shared_.tail_keys[i]);
      build_.tiles[i] = build_.works[tile];
      build_.places[tile] = i;
    }
    shared_.order.write_items(build_, thread_of_cluster<kCtas>(), kCtas * kOrderThreads);
  }

  PlainSortShared& shared_;
  const BackwardBuild& build_;
};

}  // namespace magi
