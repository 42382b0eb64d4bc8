// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/sm90/backward/prepare.hpp"

namespace magi::sm90 {

/// The index of a row and head among the packed rows.
__device__ __forceinline__ std::int64_t place_of(const PackedRows& packed, int token, int head) {
  const int shift = __ffs(packed.packed_heads) - 1;
  const int tile_tokens = kTileRows >> shift;
  const std::int64_t tile =
      static_cast<std::int64_t>(head >> shift) * packed.tiles_per_group + token / tile_tokens;
  return tile * kTileRows + (token % tile_tokens << shift) + (head & (packed.packed_heads - 1));
}

}  // namespace magi::sm90
