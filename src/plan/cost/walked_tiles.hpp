// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/math.hpp"
#include "magi/plan.hpp"

namespace magi::planner {

/// Counts tiles of 16 rows and 128 keys that kernels walk for the slices of the rank with most.
/// Eight heads that share keys fill a tile of 128 rows, which takes as long for few pairs as for
/// many.
inline std::int64_t most_walked_tiles(const Plan& plan) {
  constexpr std::int32_t kRows = 16, kKeys = 128;
  std::int64_t most = 0;
  for (const RankPlan& rank : plan.ranks) {
    std::int64_t tiles = 0;
    for (const BandSlice& slice : rank.slices) {
      for (std::int32_t q = slice.q0 / kRows * kRows; q < slice.q1; q += kRows) {
        const BandSlice part = shrink(cut_q(slice, {q, std::min(q + kRows, slice.q1)}));
        if (part.q0 < part.q1) tiles += ceil_div(part.k1 - part.k0, kKeys);
      }
    }
    most = std::max(most, tiles);
  }
  return most;
}

}  // namespace magi::planner
