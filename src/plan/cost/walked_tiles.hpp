// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/math.hpp"
#include "magi/plan.hpp"

namespace magi::planner {

/// Counts the tiles of 16 rows and 128 keys that meet a rank's slices, on the rank with most. Heads
/// that share keys fill the rows of a kernel's tile, so these are what it walks, as pairs are not.
inline std::int64_t most_walked_tiles(const Plan& plan) {
  constexpr std::int32_t kRows = 16;
  constexpr std::int32_t kKeys = 128;
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
