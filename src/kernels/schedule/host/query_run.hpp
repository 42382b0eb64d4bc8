// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/host_device.hpp"
#include "magi/mask.hpp"

// Cuts a band record of a k tile into q tiles. The cost model, the tests and the backward kernels
// share this routine.
namespace magi {

/// q tiles [tile_begin, tile_end) of the aligned grid, of which [full_begin, full_end) need no
/// mask.
struct QueryRun {
  std::int32_t tile_begin = 0;
  std::int32_t tile_end = 0;
  std::int32_t full_begin = 0;
  std::int32_t full_end = 0;
};

/// `band` is shrunk and lies inside the k tile of `width` keys that begins at key_begin; q tiles
/// are of 2^token_shift tokens.
MAGI_HOST_DEVICE QueryRun query_run(const BandSlice& band, std::int32_t key_begin,
                                    std::int32_t width, std::int32_t token_shift) {
  QueryRun run;
  run.tile_begin = band.q0 >> token_shift;
  run.tile_end = ((band.q1 - 1) >> token_shift) + 1;
  if (band.k0 != key_begin || band.k1 - key_begin != width) return run;
  // Rows in [low, high) see the first and the last key, hence all.
  std::int32_t low = band.k1 - 1 - band.d_max;
  std::int32_t high = band.k0 - band.d_min;
  low = low < band.q0 ? band.q0 : low;
  high = high >= band.q1 ? band.q1 : high + 1;
  if (low >= high) return run;
  run.full_begin = (low + (1 << token_shift) - 1) >> token_shift;
  run.full_end = high >> token_shift;
  return run;
}

}  // namespace magi
