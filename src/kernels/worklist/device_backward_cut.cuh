// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/worklist/device_backward_build.cuh"

namespace magi {

/// Cuts the keys: k tiles begin where slices do, and every `keys` behind. One CTA or cluster, a
/// word of 32 keys at a time.
class KeyCutter {
 public:
  using Shared = ClusterScanShared<std::int32_t>;

  __device__ KeyCutter(Shared& shared, const BackwardBuild& build)
      : shared_(shared),
        build_(build),
        grid_(build.grids[1]),
        share_(own_share(num_row_words(grid_.rows_k))) {}

  __device__ void run() {
    std::int32_t last = 0;
#pragma unroll 4
    for (std::int32_t word = share_.begin; word < share_.end; ++word) {
      last = last_cut(word, build_.cut_bits[word], last);
    }
    last = scan_cluster(shared_, last, 0, Largest{}).before;
    std::int32_t count = 0;
    for_each_word(last, [&](std::int32_t, std::uint32_t begins) { count += __popc(begins); });
    const ScannedCluster<std::int32_t> scan = scan_cluster(shared_, count, 0, Sum{});
    std::int32_t next = scan.before;
    for_each_word(last, [&](std::int32_t word, std::uint32_t begins) {
      grid_.tiles.bits[word] = begins;
      grid_.tiles.prefix[word] = next;
#pragma unroll 1
      for (std::uint32_t left = begins; left != 0; left &= left - 1) {
        build_.begins[next++] = word * kRowBits + __ffs(static_cast<int>(left)) - 1;
      }
    });
    if (thread_of_cluster() != 0) return;
    build_.begins[scan.total] = grid_.rows_k;
    build_.header->num_cut_tiles = scan.total;
  }

 private:
  /// Calls visit(word, keys of it where k tiles begin) for the thread's words; `last`: where a
  /// slice begins before them.
  template <typename Visit>
  __device__ __forceinline__ void for_each_word(std::int32_t last, Visit visit) const {
#pragma unroll 1
    for (std::int32_t word = share_.begin; word < share_.end; ++word) {
      const std::uint32_t cuts = build_.cut_bits[word];
      visit(word, begins_in(word, cuts, last));
      last = last_cut(word, cuts, last);
    }
  }

  /// The last key of the word where a slice begins, or `last`.
  __device__ static std::int32_t last_cut(std::int32_t word, std::uint32_t cuts,
                                          std::int32_t last) {
    return cuts == 0 ? last : word * kRowBits + kRowBits - 1 - __clz(static_cast<int>(cuts));
  }

  /// The keys of the word where k tiles begin; `last`: where a slice did so before it. A word has
  /// fewer keys than a k tile, so one at most begins in front of the word's first cut and none
  /// behind a cut.
  __device__ std::uint32_t begins_in(std::int32_t word, std::uint32_t cuts,
                                     std::int32_t last) const {
    const std::int32_t first = word * kRowBits;
    std::uint32_t bits = cuts | (word == 0 ? 1u : 0u);
    const std::int32_t end = bits == 0 ? kRowBits : __ffs(static_cast<int>(bits)) - 1;
    const std::int32_t over = (first - last) % grid_.keys;
    const std::int32_t next = over == 0 ? 0 : grid_.keys - over;
    if (next < min(end, grid_.rows_k - first)) bits |= 1u << next;
    return bits;
  }

  Shared& shared_;
  const BackwardBuild& build_;
  const KeyGrid& grid_;
  const Range share_;
};

}  // namespace magi
