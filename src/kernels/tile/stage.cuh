// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/copy.cuh"
#include "kernels/tile/descriptor.cuh"
#include "kernels/tile/fragment.cuh"

namespace magi::tile {

/// Rounds a warp's 16 rows of accumulators to 16 bits and stores them in shared memory, as rows
/// from `first_row` on of a tile of kRows rows in swizzled panels.
template <DType kType, int kRows, int kCount>
__device__ __forceinline__ void stage_rows(std::uint8_t* tile, int first_row, int lane,
                                           const float (&values)[kCount]) {
  const std::uint32_t base = ptx::shared_address(tile);
#pragma unroll
  for (int c = 0; c < kCount / 4; c += 2) {
    const std::uint32_t address = base +
                                  static_cast<std::uint32_t>(c / 8 * kRows * kPanelRowBytes) +
                                  swizzled_offset(first_row + lane % 16, c % 8 + lane / 16);
    const float* value = values + 4 * c;
    ptx::store_matrix_x4(address, ptx::pack_half2<kType>(value[0], value[1]),
                         ptx::pack_half2<kType>(value[2], value[3]),
                         ptx::pack_half2<kType>(value[4], value[5]),
                         ptx::pack_half2<kType>(value[6], value[7]));
  }
}

}  // namespace magi::tile
