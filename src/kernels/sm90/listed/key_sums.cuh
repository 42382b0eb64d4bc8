// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/copy.cuh"
#include "kernels/sm90/listed/list_reader.cuh"
#include "kernels/tile/fragment.cuh"

namespace magi::sm90 {

template <bool kHasParts>
__device__ __forceinline__ void put_key_row(float* target, float x, float y, float z, float w) {
  if constexpr (kHasParts) {
    ptx::store_float4(target, x, y, z, w);
  } else {
    ptx::add_float4(target, x, y, z, w);
  }
}

/// Adds a warpgroup's fragment of 64 rows, gradients of keys, to float32 rows of `dim` elements,
/// `key_stride` elements from key to key; with kHasParts, stores it there. `keys`: those of the
/// thread's two rows, or kNoKey. Four lanes hold two neighbouring chunks of 8 columns in pairs;
/// even lanes take the first chunk and odd lanes the second, so that each adds 16 bytes.
template <bool kHasParts, int kCount>
__device__ __forceinline__ void add_key_rows(float* sums, std::int64_t key_stride, int dim,
                                             const std::int32_t (&keys)[tile::kRowsPerThread],
                                             const float (&values)[kCount]) {
  const int column = static_cast<int>(threadIdx.x) % 4 * 2;
  const bool is_odd = column % 4 != 0;
  const int first_column = column + (is_odd ? 6 : 0);
#pragma unroll
  for (int row = 0; row < tile::kRowsPerThread; ++row) {
    const int num_columns = keys[row] == kNoKey ? 0 : dim - first_column;
    float* target = sums + (keys[row] == kNoKey ? 0 : keys[row] * key_stride) + first_column;
#pragma unroll
    for (int c = 0; c < kCount / 4; c += 2) {
      const float* first = values + 4 * c + 2 * row;
      const float* second = first + 4;
      const float x = __shfl_xor_sync(0xffffffffu, is_odd ? first[0] : second[0], 1);
      const float y = __shfl_xor_sync(0xffffffffu, is_odd ? first[1] : second[1], 1);
      if (8 * c >= num_columns) continue;
      if (is_odd) {
        put_key_row<kHasParts>(target + 8 * c, x, y, second[0], second[1]);
      } else {
        put_key_row<kHasParts>(target + 8 * c, first[0], first[1], x, y);
      }
    }
  }
}

}  // namespace magi::sm90
