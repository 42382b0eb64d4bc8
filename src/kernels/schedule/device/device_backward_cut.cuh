// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/schedule/device/device_backward_build.cuh"

namespace magi {

/// Marks the key where a slice begins, unless it is empty.
__device__ __forceinline__ void mark_slice(const BandSlice& band, std::uint32_t* marks) {
  if (band.q0 < band.q1) atomicOr(marks + band.k0 / kRowBits, 1u << (band.k0 % kRowBits));
}

/// Marks all slices in the block's shared memory.
__device__ __forceinline__ void mark_slices_of_block(const BackwardBuild& build,
                                                     std::uint32_t* marks) {
  const std::int32_t words = num_row_words(build.grids[1].rows_k);
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const auto stride = static_cast<std::int32_t>(blockDim.x);
  for (std::int32_t i = thread; i < words; i += stride) marks[i] = 0;
  __syncthreads();
  constexpr int kAtOnce = 4;  // independent reads
#pragma unroll 1
  for (std::int32_t first = thread; first < build.source.count; first += kAtOnce * stride) {
    BandSlice bands[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const std::int32_t slice = first + i * stride;
      if (slice >= build.source.count) continue;
      bands[i] = read_slice(build.source, slice, build.rows_q, build.grids[1].rows_k).band;
    }
#pragma unroll
    for (const BandSlice& band : bands) mark_slice(band, marks);
  }
  __syncthreads();
}

/// Cuts the keys: k tiles begin where slices do, and every `keys` after. One CTA or cluster of
/// up to kMost, a word of 32 keys at a time; `cuts` has a bit for each key where a slice begins.
template <int kMost>
class KeyCutter {
 public:
  using Shared = ClusterScanShared<std::int32_t>;

  __device__ KeyCutter(Shared& shared, const BackwardBuild& build, const std::uint32_t* cuts)
      : shared_(shared),
        build_(build),
        cuts_(cuts),
        grid_(build.grids[1]),
        share_(own_share<kMost>(num_row_words(grid_.rows_k))) {}

  __device__ void run() {
    std::int32_t last = 0;
#pragma unroll 4
    for (std::int32_t word = share_.begin; word < share_.end; ++word) {
      last = last_cut(word, cuts_[word], last);
    }
    last = scan_cluster<kMost>(shared_, last, 0, Largest{}).before;
    std::int32_t count = 0;
    for_each_word(last, [&](std::int32_t, std::uint32_t begins) { count += __popc(begins); });
    const ScannedCluster<std::int32_t> scan = scan_cluster<kMost>(shared_, count, 0, Sum{});
    std::int32_t next = scan.before;
    for_each_word(last, [&](std::int32_t word, std::uint32_t begins) {
      grid_.tiles.bits[word] = begins;
      grid_.tiles.prefix[word] = next;
#pragma unroll 1
      for (std::uint32_t left = begins; left != 0; left &= left - 1) {
        build_.begins[next++] = word * kRowBits + __ffs(static_cast<int>(left)) - 1;
      }
    });
    if (thread_of_cluster<kMost>() != 0) return;
    build_.begins[scan.total] = grid_.rows_k;
    *build_.num_cut_tiles = scan.total;
  }

 private:
  /// Calls visit(word, keys of it where k tiles begin) for the thread's words; `last`: where a
  /// slice begins before them.
  template <typename Visit>
  __device__ __forceinline__ void for_each_word(std::int32_t last, Visit visit) const {
#pragma unroll 1
    for (std::int32_t word = share_.begin; word < share_.end; ++word) {
      const std::uint32_t cuts = cuts_[word];
      visit(word, begins_in(word, cuts, last));
      last = last_cut(word, cuts, last);
    }
  }

  /// The last key of the word where a slice begins, or `last`.
  __device__ static std::int32_t last_cut(std::int32_t word, std::uint32_t cuts,
                                          std::int32_t last) {
    return cuts == 0 ? last : word * kRowBits + kRowBits - 1 - __clz(static_cast<int>(cuts));
  }

  /// The keys of the word where k tiles begin; `last`: the begin of a slice before it. A word has
  /// fewer keys than a k tile, so at most one begins before the word's first cut and none after a
  /// cut.
  __device__ std::uint32_t begins_in(std::int32_t word, std::uint32_t cuts,
                                     std::int32_t last) const {
    const std::int32_t first = word * kRowBits;
    std::uint32_t bits = cuts | (word == 0 ? 1u : 0u);
    const std::int32_t end = bits == 0 ? kRowBits : __ffs(static_cast<int>(bits)) - 1;
    const auto over = static_cast<std::int32_t>(static_cast<std::uint32_t>(first - last) %
                                                static_cast<std::uint32_t>(grid_.keys));
    const std::int32_t next = over == 0 ? 0 : grid_.keys - over;
    if (next < min(end, grid_.rows_k - first)) bits |= 1u << next;
    return bits;
  }

  Shared& shared_;
  const BackwardBuild& build_;
  const std::uint32_t* cuts_;
  const KeyGrid& grid_;
  const Range share_;
};

}  // namespace magi
