// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/sm90/listed/shared.cuh"
#include "kernels/tile/fragment.cuh"

namespace magi::sm90 {

/// Sets columns without a key to -infinity: `is_key` has kBits bits of each loading warp.
template <int kBits, int kCount>
__device__ __forceinline__ void mask_columns(float (&scores)[kCount],
                                             const std::uint32_t (&is_key)[kLoadingWarps]) {
  const int first_column = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int column = i / 4 * 8 + i % 2;  // less the thread's first column
    const std::uint32_t bits = is_key[column / kBits] >> first_column;
    scores[i] = (bits >> (column % kBits) & 1) != 0 ? scores[i] : -INFINITY;
  }
}

/// Sets columns that a row does not see to -infinity: `seen` has a bit for each of 64 columns.
template <int kCount>
__device__ __forceinline__ void mask_rows(float (&scores)[kCount],
                                          const uint2 (&seen)[tile::kRowsPerThread]) {
  const int first_column = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int column = i / 4 * 8 + i % 2;  // less the thread's first column
    const uint2& row = seen[(i / 2) % 2];
    const std::uint32_t bits = (column < 32 ? row.x : row.y) >> first_column;
    scores[i] = (bits >> (column % 32) & 1) != 0 ? scores[i] : -INFINITY;
  }
}

/// The positions of a tile that have keys.
template <ListedConfig kC>
class TileMask {
 public:
  __device__ __forceinline__ TileMask(const ListedShape&, int) {}
  __device__ __forceinline__ void load(const std::uint32_t* words) {
#pragma unroll
    for (int i = 0; i < kLoadingWarps; ++i) is_key_[i] = words[i];
  }
  template <int kCount>
  __device__ __forceinline__ void apply(float (&scores)[kCount]) const {
    constexpr std::uint32_t kAllKeys =
        kC.keys_per_warp() == 32 ? 0xffffffffu : (1u << kC.keys_per_warp()) - 1;
    bool is_full = true;
#pragma unroll
    for (int i = 0; i < kLoadingWarps; ++i) is_full &= is_key_[i] == kAllKeys;
    if (!is_full) mask_columns<kC.keys_per_warp()>(scores, is_key_);
  }

 private:
  std::uint32_t is_key_[kLoadingWarps];
};

/// The keys of a joined tile that the queries of the thread's rows see.
template <ListedConfig kC>
requires(kC.is_joined) class TileMask<kC> {
 public:
  __device__ __forceinline__ TileMask(const ListedShape& shape, int warpgroup) {
    const int row = 64 * warpgroup + tile::FragmentPlace(ptx::thread_index() % 128).row;
#pragma unroll
    for (int i = 0; i < tile::kRowsPerThread; ++i) {
      // Rows without a query see what the last query sees, so that a warp's rows rescale together.
      query_[i] = min((row + 8 * i) / shape.heads_per_kv, kMostJoined - 1);
    }
  }
  __device__ __forceinline__ void load(const std::uint32_t* words) {
#pragma unroll
    for (int i = 0; i < tile::kRowsPerThread; ++i) {
      seen_[i] = reinterpret_cast<const uint2*>(words)[query_[i]];
    }
  }
  template <int kCount>
  __device__ __forceinline__ void apply(float (&scores)[kCount]) const {
    mask_rows(scores, seen_);
  }

 private:
  int query_[tile::kRowsPerThread];
  uint2 seen_[tile::kRowsPerThread];
};

}  // namespace magi::sm90
