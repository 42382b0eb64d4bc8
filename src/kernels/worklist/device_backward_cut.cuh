// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/worklist/device_backward_build.cuh"

namespace magi {

inline constexpr std::int32_t kRowBits = 32;  ///< rows of a word of MarkedRows

__device__ __forceinline__ std::int32_t num_row_words(std::int32_t rows) {
  return (rows + kRowBits - 1) / kRowBits;
}

/// Cuts the keys: k tiles begin where slices do, and every `keys` behind. One cluster, a word of 32
/// keys at a time.
class KeyCutter {
 public:
  using Shared = ClusterScanShared<std::int32_t>;

  __device__ KeyCutter(Shared& shared, const BackwardBuild& build)
      : shared_(shared), build_(build) {}

  __device__ void run() {
    const KeyGrid& grid = build_.grids[1];
    const Range share = own_share(num_row_words(grid.rows_k));
    std::int32_t last = 0;
#pragma unroll 1
    for (std::int32_t word = share.begin; word < share.end; ++word) last = cut_in(word, last);
    last = scan_cluster(shared_, last, 0, Largest{}).before;
    std::int32_t count = 0;
#pragma unroll 1
    for (std::int32_t word = share.begin; word < share.end; ++word) {
      const std::uint32_t bits = begins_in(word, last);
      grid.tiles.bits[word] = bits;
      count += __popc(bits);
      last = cut_in(word, last);
    }
    const ScannedCluster<std::int32_t> scan = scan_cluster(shared_, count, 0, Sum{});
    std::int32_t next = scan.before;
#pragma unroll 1
    for (std::int32_t word = share.begin; word < share.end; ++word) {
      grid.tiles.prefix[word] = next;
#pragma unroll 1
      for (std::uint32_t left = grid.tiles.bits[word]; left != 0; left &= left - 1) {
        build_.begins[next++] = word * kRowBits + __ffs(static_cast<int>(left)) - 1;
      }
    }
    if (thread_of_cluster() != 0) return;
    build_.begins[scan.total] = grid.rows_k;
    build_.header->num_cut_tiles = scan.total;
  }

 private:
  /// The last key of the word where a slice begins, or `last`.
  __device__ std::int32_t cut_in(std::int32_t word, std::int32_t last) const {
    const std::uint32_t cuts = build_.cut_bits[word];
    return cuts == 0 ? last : word * kRowBits + kRowBits - 1 - __clz(static_cast<int>(cuts));
  }

  /// The keys of the word where k tiles begin; `last`: where a slice did so before it. A word has
  /// fewer keys than a k tile, so one at most begins in front of the word's first cut and none
  /// behind a cut.
  __device__ std::uint32_t begins_in(std::int32_t word, std::int32_t last) const {
    const KeyGrid& grid = build_.grids[1];
    const std::int32_t first = word * kRowBits;
    std::uint32_t bits = build_.cut_bits[word] | (word == 0 ? 1u : 0u);
    const std::int32_t end = bits == 0 ? kRowBits : __ffs(static_cast<int>(bits)) - 1;
    const std::int32_t next = (grid.keys - (first - last) % grid.keys) % grid.keys;
    if (next < min(end, grid.rows_k - first)) bits |= 1u << next;
    return bits;
  }

  Shared& shared_;
  const BackwardBuild& build_;
};

}  // namespace magi
