// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/host_device.hpp"
#include "magi/mask.hpp"

// Cuts a band record into k tiles. The cost model, the tests and the kernels share this
// routine.
namespace magi {

/// The k tiles of one record, walked from high keys to low: tile j holds keys [k_end - (j + 1) *
/// width, k_end - j * width), of which those below the record's k0 are masked.
struct TileRun {
  std::int32_t k_end = 0;
  std::int32_t num_tiles = 0;
  std::int32_t full_begin = 0;  ///< tiles [full_begin, full_end) need no mask
  std::int32_t full_end = 0;
};

/// Rows [row_begin, row_end) are the q tile's rows that lie inside the tensor.
MAGI_HOST_DEVICE TileRun tile_run(const BandSlice& band, std::int32_t row_begin,
                                  std::int32_t row_end, std::int32_t width) {
  TileRun run;
  run.k_end = band.k1;
  run.num_tiles = (band.k1 - band.k0 + width - 1) / width;
  if (band.q0 > row_begin || band.q1 < row_end) return run;
  // Keys in [low, high) are seen by the first and by the last row, hence by all.
  std::int32_t low = band.q1 - 1 + band.d_min;
  std::int32_t high = band.q0 + band.d_max + 1;
  low = low < band.k0 ? band.k0 : (low > band.k1 ? band.k1 : low);
  high = high > band.k1 ? band.k1 : (high < band.k0 ? band.k0 : high);
  run.full_begin = (band.k1 - high + width - 1) / width;
  run.full_end = (band.k1 - low) / width;
  return run;
}

/// Whether the last tile of the run holds at most `trimmed` keys of the record.
MAGI_HOST_DEVICE bool ends_short(const BandSlice& band, const TileRun& run, std::int32_t width,
                                 std::int32_t trimmed) {
  return band.k1 - band.k0 - (run.num_tiles - 1) * width <= trimmed;
}

}  // namespace magi
