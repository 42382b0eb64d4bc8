// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "magi/band.hpp"

namespace magi {

/// The same pairs with queries and keys in each other's place.
inline std::vector<BandSlice> transpose(std::span<const BandSlice> slices) {
  std::vector<BandSlice> result;
  result.reserve(slices.size());
  for (const BandSlice& s : slices) {
    result.push_back({s.k0, s.k1, s.q0, s.q1, -s.d_max, -s.d_min});
  }
  return result;
}

}  // namespace magi
