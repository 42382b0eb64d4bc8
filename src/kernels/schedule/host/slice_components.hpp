// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "magi/band.hpp"

namespace magi {

/// Components of slices, numbered by their first row; -1 of a slice without pairs.
struct SliceComponents {
  std::vector<std::int32_t> by_rows;  ///< slices that have rows in common are in one
  /// Slices that have rows or keys in common are in one, as the nodes of a prefix tree and the
  /// parts of a document are.
  std::vector<std::int32_t> by_rows_and_keys;
};

/// Runs in O(n log n).
SliceComponents connect_slices(std::span<const BandSlice> slices);

}  // namespace magi
