// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/schedule/host/seen_rows.hpp"

namespace magi {

/// Rows from `row` on, a bit each: those that somebody sees.
__device__ __forceinline__ std::uint32_t seen_from(const std::uint32_t* seen, std::int32_t row) {
  const std::uint32_t* words = seen + row / kSeenBits;
  return __funnelshift_r(__ldg(words), __ldg(words + 1), row % kSeenBits);
}

/// Whether nobody sees some of the rows [row, end).
__device__ __forceinline__ bool has_unseen(const std::uint32_t* seen, std::int32_t row,
                                           std::int32_t end) {
#pragma unroll 1
  for (; row < end; row += kSeenBits) {
    const std::int32_t count = min(end - row, kSeenBits);
    if ((~seen_from(seen, row) << (kSeenBits - count)) != 0) return true;
  }
  return false;
}

/// Marks rows [row, end) as seen, others beside.
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
