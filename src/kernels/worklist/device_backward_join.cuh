// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/worklist/device_backward_cut.cuh"

namespace magi {

/// Finds the components of the rows, and tells k tiles and records of theirs: one cluster, a word
/// of 32 rows at a time.
class RowJoiner {
 public:
  using Shared = ClusterScanShared<std::int32_t>;

  __device__ RowJoiner(Shared& shared, const BackwardBuild& build)
      : shared_(shared), build_(build) {}

  __device__ void run() {
    join_rows();
    cooperative_groups::this_cluster().sync();
    count_components();
    mark_records();
    mark_tiles();
  }

 private:
  static constexpr std::int32_t kFours = kRowBits / 4;

  /// Where the records end that begin in four rows in a row.
  __device__ int4 ends_of_four(std::int32_t four) const {
    return reinterpret_cast<const int4*>(build_.row_ends)[four];
  }

  /// Finds the components: runs of rows that records join.
  __device__ void join_rows() {
    const Range share = own_share(num_row_words(build_.rows_q));
    std::int32_t end = 0;
#pragma unroll 1
    for (std::int32_t word = share.begin; word < share.end; ++word) {
      // Loads that do not wait for one another.
#pragma unroll
      for (std::int32_t four = 0; four < kFours; ++four) {
        const int4 ends = ends_of_four(word * kFours + four);
        end = max(max(end, max(ends.x, ends.y)), max(ends.z, ends.w));
      }
    }
    end = scan_cluster(shared_, end, 0, Largest{}).before;
    std::int32_t count = 0;
#pragma unroll 1
    for (std::int32_t word = share.begin; word < share.end; ++word) {
      end = mark_components(word, end);
      count += __popc(build_.components.bits[word]);
    }
    const ScannedCluster<std::int32_t> scan = scan_cluster(shared_, count, 0, Sum{});
    if (thread_of_cluster() == 0) build_.header->num_components = scan.total;
    std::int32_t next = scan.before;
#pragma unroll 1
    for (std::int32_t word = share.begin; word < share.end; ++word) {
      build_.components.prefix[word] = next;
      next += __popc(build_.components.bits[word]);
    }
  }

  /// `end`: of the records that begin before the word. Returns that of those before the next.
  __device__ std::int32_t mark_components(std::int32_t word, std::int32_t end) const {
    std::uint32_t begins = 0;
    std::uint32_t covered = 0;
#pragma unroll 2
    for (std::int32_t four = 0; four < kFours; ++four) {
      const int4 ends = ends_of_four(word * kFours + four);
      const std::int32_t row_ends[4] = {ends.x, ends.y, ends.z, ends.w};
#pragma unroll
      for (std::int32_t i = 0; i < 4; ++i) {
        const std::uint32_t bit = 1u << (four * 4 + i);
        if (end > word * kRowBits + four * 4 + i) {
          covered |= bit;
        } else if (row_ends[i] > 0) {
          begins |= bit;
        }
        end = max(end, row_ends[i]);
      }
    }
    build_.components.bits[word] = begins;
    build_.covered.bits[word] = covered;
    return end;
  }

  /// Counts the components that have rows in each q tile.
  __device__ void count_components() {
    const Range share = own_share(build_.num_q_tiles);
#pragma unroll 1
    for (std::int32_t tile = share.begin; tile < share.end; ++tile) {
      const std::int32_t first = tile << build_.token_shift;
      const std::int32_t last = min((tile + 1) << build_.token_shift, build_.rows_q) - 1;
      const std::int32_t before = first == 0 ? 0 : build_.components.up_to(first - 1);
      build_.tile_components[tile] =
          build_.components.up_to(last) - before + (build_.covered.has(first) ? 1 : 0);
    }
  }

  __device__ std::int32_t component_of(std::int32_t row) const {
    return build_.components.up_to(row) - 1;
  }

  /// Semaphores are numbered q tile + component.
  __device__ void mark_records() const {
    const auto num_records = static_cast<std::int32_t>(build_.header->outcome.num_records);
#pragma unroll 1
    for (std::int32_t i = thread_of_cluster(); i < num_records; i += kOrderCtas * kOrderThreads) {
      RecordMark mark = build_.marks[i];
      if (mark.semaphore_begin >= mark.semaphore_end) continue;
      mark.component = component_of(build_.records[i].band.q0);
      mark.semaphore_begin += mark.component;
      mark.semaphore_end += mark.component;
      build_.marks[i] = mark;
      atomicMax(&build_.record_ends[mark.component], i + 1);
      atomicMax(&build_.record_begins[mark.component], num_records - i);
    }
  }

  __device__ void mark_tiles() const {
    const std::int32_t num_tiles = build_.header->outcome.num_tiles;
#pragma unroll 1
    for (std::int32_t i = thread_of_cluster(); i < num_tiles; i += kOrderCtas * kOrderThreads) {
      const KeyTile tile = build_.works[i];
      std::int32_t component = -1;
      if (tile.record_begin < tile.record_end) {
        component = component_of(build_.records[tile.record_begin].band.q0);
        const auto below = static_cast<std::int32_t>(build_.sort_keys[0][i] >> 32);
        atomicMax(&build_.longest[component], kMaxTileCost - below);
      }
      build_.tile_component[i] = component;
    }
  }

  Shared& shared_;
  const BackwardBuild& build_;
};

}  // namespace magi
