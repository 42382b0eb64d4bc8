// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/schedule/device/device_backward_build.cuh"

// Components: runs of rows that records join. Rows form groups, so that blocks need not wait for
// one another: earlier steps found where records that begin in a group end, and the step that
// numbers components adds up how many begin in the groups.
namespace magi {

inline constexpr int kJoinThreads = 256;
static_assert(kMostRowGroups % kJoinThreads == 0);

using RowScanStorage = ScanStorage<std::int32_t, kJoinThreads>;

/// Reports that the mask leaves rows out.
__device__ __forceinline__ void tell_unseen(const BackwardBuild& build) {
  build.header->outcome.has_unseen = 1;
}

/// Marks the rows of a group where components begin or go on: a block for each group.
class RowJoiner {
 public:
  __device__ RowJoiner(RowScanStorage& storage, const BackwardBuild& build)
      : storage_(storage),
        build_(build),
        group_(static_cast<std::int32_t>(blockIdx.x)),
        end_(end_of_groups_before()) {}

  __device__ void run() {
    const std::int64_t begin = std::int64_t{group_} << build_.groups.shift;
    const std::int64_t end = std::int64_t{group_ + 1} << build_.groups.shift;
    std::int32_t count = 0;
#pragma unroll 1
    for (std::int64_t first = begin; first < end && first < build_.rows_q; first += kJoinThreads) {
      count = join_rows(static_cast<std::int32_t>(first), count);
    }
    if (threadIdx.x == 0) build_.group_counts[group_] = count;
  }

 private:
  /// The last end of records that begin in earlier groups.
  __device__ std::int32_t end_of_groups_before() const {
    std::int32_t end = 0;
#pragma unroll 4
    for (auto i = static_cast<std::int32_t>(threadIdx.x); i < group_; i += kJoinThreads) {
      end = max(end, build_.group_ends[i]);
    }
    return scan_block<kJoinThreads>(end, storage_, 0, Largest{}).total;
  }

  /// Marks kJoinThreads rows, after `count` components of the group. Returns the new count of
  /// components.
  __device__ std::int32_t join_rows(std::int32_t first, std::int32_t count) {
    const std::int32_t row = first + static_cast<std::int32_t>(threadIdx.x);
    const std::int32_t own = row < build_.rows_q ? build_.row_ends[row] : 0;
    const auto ends = scan_block<kJoinThreads>(own, storage_, 0, Largest{});
    const bool is_covered = max(end_, ends.before) > row;
    const std::uint32_t covered = __ballot_sync(kFullWarp, is_covered);
    const std::uint32_t begins = __ballot_sync(kFullWarp, !is_covered && own > 0);
    const std::int32_t of_word = lane_index() == 0 ? __popc(begins) : 0;
    const auto counts = scan_block<kJoinThreads>(of_word, storage_);
    if (lane_index() == 0 && row < build_.rows_q) {
      const std::int32_t word = row / kRowBits;
      build_.components.bits[word] = begins;
      build_.components.prefix[word] = count + counts.before;
      build_.covered.bits[word] = covered;
      build_.seen_queries[word] = covered | begins;
      const std::int32_t count_inside = min(build_.rows_q - row, kRowBits);
      if ((~(covered | begins) << (kRowBits - count_inside)) != 0) tell_unseen(build_);
    }
    end_ = max(end_, ends.total);
    return count + counts.total;
  }

  RowScanStorage& storage_;
  const BackwardBuild& build_;
  const std::int32_t group_;
  std::int32_t end_;  ///< of the records that begin before the rows
};

struct ComponentShared {
  RowScanStorage scan;
  std::int32_t before[kMostRowGroups];  ///< components that begin in earlier groups
};

/// Numbers the components, and sets those of k tiles, q tiles and records.
class ComponentMarker {
 public:
  __device__ ComponentMarker(ComponentShared& shared, const BackwardBuild& build)
      : shared_(shared), build_(build) {}

  __device__ void run() {
    number_components();
    const auto num_records = static_cast<std::int32_t>(build_.header->outcome.num_records);
    const std::int32_t num_tiles = build_.header->outcome.num_tiles;
    const std::int64_t end = std::int64_t{num_records} + num_tiles + build_.num_q_tiles;
    const std::int64_t stride = std::int64_t{gridDim.x} * kJoinThreads;
#pragma unroll 1
    for (std::int64_t i = std::int64_t{blockIdx.x} * kJoinThreads + threadIdx.x; i < end;
         i += stride) {
      const std::int64_t behind_records = i - num_records;
      if (behind_records < 0) {
        mark_record(static_cast<std::int32_t>(i), num_records);
      } else if (behind_records < num_tiles) {
        mark_tile(static_cast<std::int32_t>(behind_records));
      } else {
        count_components(static_cast<std::int32_t>(behind_records - num_tiles));
      }
    }
  }

 private:
  __device__ void number_components() {
    constexpr std::int32_t kShare = kMostRowGroups / kJoinThreads;
    const std::int32_t first = static_cast<std::int32_t>(threadIdx.x) * kShare;
    std::int32_t counts[kShare];
    std::int32_t sum = 0;
#pragma unroll
    for (std::int32_t i = 0; i < kShare; ++i) {
      counts[i] = first + i < build_.groups.count ? build_.group_counts[first + i] : 0;
      sum += counts[i];
    }
    const auto scan = scan_block<kJoinThreads>(sum, shared_.scan);
    std::int32_t before = scan.before;
#pragma unroll
    for (std::int32_t i = 0; i < kShare; ++i) {
      shared_.before[first + i] = before;
      before += counts[i];
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) build_.header->num_components = scan.total;
    __syncthreads();
  }

  /// Components that begin in the rows [0, row].
  __device__ std::int32_t components_up_to(std::int32_t row) const {
    return shared_.before[row >> build_.groups.shift] + build_.components.up_to(row);
  }
  __device__ std::int32_t component_of(std::int32_t row) const { return components_up_to(row) - 1; }

  /// Semaphores are numbered q tile + component.
  __device__ void mark_record(std::int32_t index, std::int32_t num_records) const {
    const std::int32_t row = build_.records[index].band.q0;
    RecordMark mark = build_.marks[index];
    if (mark.semaphore_begin >= mark.semaphore_end) return;
    atomicAdd(&build_.addition_changes[mark.semaphore_begin], 1);
    atomicAdd(&build_.addition_changes[mark.semaphore_end], -1);
    mark.component = component_of(row);
    mark.semaphore_begin += mark.component;
    mark.semaphore_end += mark.component;
    build_.marks[index] = mark;
    atomicMax(&build_.record_ends[mark.component], index + 1);
    atomicMax(&build_.record_begins[mark.component], num_records - index);
  }

  __device__ void mark_tile(std::int32_t index) const {
    const KeyTile tile = build_.works[index];
    std::int32_t component = -1;
    if (tile.record_begin < tile.record_end) {
      component = component_of(build_.records[tile.record_begin].band.q0);
      const auto below = static_cast<std::int32_t>(build_.sort_keys[0][index] >> 32);
      atomicMax(&build_.longest[component], kMaxTileCost - below);
    }
    build_.tile_component[index] = component;
    if (has_unseen(build_.seen_keys, tile.key_begin, tile.key_end)) tell_unseen(build_);
  }

  /// Counts the components that have rows in a q tile.
  __device__ void count_components(std::int32_t tile) const {
    const std::int32_t first = tile << build_.token_shift;
    const std::int32_t last = min((tile + 1) << build_.token_shift, build_.rows_q) - 1;
    const std::int32_t before = first == 0 ? 0 : components_up_to(first - 1);
    const std::int32_t first_component = before - (build_.covered.has(first) ? 1 : 0);
    build_.tile_components[tile] = components_up_to(last) - first_component;
    build_.tile_semaphores[tile].begin = tile + first_component;
  }

  ComponentShared& shared_;
  const BackwardBuild& build_;
};

}  // namespace magi
