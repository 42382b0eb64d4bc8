// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/sm90/listed/shared.cuh"

namespace magi::sm90 {

/// Sets the columns whose bit is not set to -infinity: `is_key` has kBits bits of each loading
/// warp.
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

}  // namespace magi::sm90
