// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/forward/shared.cuh"
#include "kernels/tile/fragment.cuh"

namespace magi::sm90 {

/// The place where a warpgroup's scores of a tile begin.
struct ScoreOrigin {
  int row;  ///< of the q tile
  int key;
};

/// Sets the scores that the run's band hides to -infinity: those of 64 rows and kKeys keys.
template <int kKeys, int kCount>
__device__ __forceinline__ void mask_by_run(float (&scores)[kCount], const RunMessage& run,
                                            ScoreOrigin origin, int packed_shift) {
  const tile::FragmentPlace place(ptx::thread_index() % 128);
  int low[tile::kRowsPerThread];
  int high[tile::kRowsPerThread];
#pragma unroll
  for (int row = 0; row < tile::kRowsPerThread; ++row) {
    const int row_in_tile = origin.row + place.row + 8 * row;
    const int token = run.token_begin + (row_in_tile >> packed_shift);
    const bool is_inside = token >= run.q0 && token < run.q1;
    low[row] = (is_inside ? max(run.k0, token + run.d_min) : 0) - place.column - origin.key;
    high[row] = (is_inside ? min(run.k1, token + run.d_max + 1) : 0) - place.column - origin.key;
  }
  tile::mask_rows<kKeys>(scores, low, high);
}

}  // namespace magi::sm90
