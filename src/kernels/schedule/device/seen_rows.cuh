// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/schedule/host/seen_rows.hpp"

namespace magi {

/// A bit per row from `row` on: whether the row is seen.
__device__ __forceinline__ std::uint32_t seen_from(const std::uint32_t* seen, std::int32_t row) {
  const std::uint32_t* words = seen + row / kSeenBits;
  return __funnelshift_r(__ldg(words), __ldg(words + 1), row % kSeenBits);
}

/// Whether some of the rows [row, end) are not seen.
__device__ __forceinline__ bool has_unseen(const std::uint32_t* seen, std::int32_t row,
                                           std::int32_t end) {
#pragma unroll 1
  for (; row < end; row += kSeenBits) {
    const std::int32_t count = min(end - row, kSeenBits);
    if ((~seen_from(seen, row) << (kSeenBits - count)) != 0) return true;
  }
  return false;
}

/// Marks rows [row, end) as seen, while other threads mark others.
__device__ __forceinline__ void mark_seen(std::uint32_t* seen, std::int32_t row, std::int32_t end) {
#pragma unroll 1
  while (row < end) {
    const std::int32_t first = row % kSeenBits;
    const std::int32_t count = min(kSeenBits - first, end - row);
    atomicOr(seen + row / kSeenBits, (~0u >> (kSeenBits - count)) << first);
    row += count;
  }
}

}  // namespace magi
