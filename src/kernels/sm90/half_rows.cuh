// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/ptx/math.cuh"

namespace magi::sm90 {

/// Writes one of the two rows of a fragment (tile/fragment.cuh) in 16 bits from registers, its
/// first num_columns columns, a multiple of 8. `row` is 0 or 1, `column` the thread's first. Of two
/// neighbouring chunks of 8 columns, which four lanes hold in pairs, even lanes take the first and
/// odd ones the second: all store 8 bytes. By whole warps.
template <DType kType, int kCount>
__device__ __forceinline__ void write_half_row(const float (&values)[kCount], int row, int column,
                                               int num_columns, std::uint16_t* target) {
  const bool is_odd = column % 4 != 0;
  const int first_column = column + (is_odd ? 6 : 0);
#pragma unroll
  for (int c = 0; c < kCount / 4; c += 2) {
    const int i = 4 * c + 2 * row;
    const std::uint32_t first = ptx::pack_half2<kType>(values[i], values[i + 1]);
    const std::uint32_t second = ptx::pack_half2<kType>(values[i + 4], values[i + 5]);
    const std::uint32_t other = __shfl_xor_sync(0xffffffffu, is_odd ? first : second, 1);
    if (8 * c >= num_columns - first_column) continue;
    *reinterpret_cast<uint2*>(target + first_column + 8 * c) =
        is_odd ? make_uint2(other, second) : make_uint2(first, other);
  }
}

}  // namespace magi::sm90
