// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "magi/mask.hpp"

// Masks row by row: the form to which descriptions by intervals of rows or keys come down, and from
// which they can be told again, for sequences of any length.
namespace magi {

/// The keys of every query row as runs. Those of row i are runs[offsets[i]] to
/// runs[offsets[i + 1] - 1]: ascending, not empty, at least one hidden key between two.
struct RowRuns {
  std::int32_t rows_k = 0;
  std::vector<std::int64_t> offsets{0};  ///< [rows_q + 1]
  std::vector<Range> runs;

  friend bool operator==(const RowRuns&, const RowRuns&) = default;
};

/// The slices that hold exactly the keys of each row, each pair once. Intervals of a row may come
/// in any order, touch, overlap or be empty; their union counts. `offsets` are those of RowRuns. A
/// run that keeps to a band from row to row is one slice, so that equal sets of pairs give equal
/// masks. InvalidArgument for offsets that do not ascend from 0 to the number of intervals, and for
/// intervals that are reversed or leave the keys, by their row.
Mask mask_from_runs(std::span<const std::int64_t> offsets, std::span<const Range> intervals,
                    std::int32_t rows_k);

/// The inverse. InvalidArgument where a row sees a key in two slices, naming both.
RowRuns runs_of(const Mask& mask);

/// The same pairs with queries and keys in each other's place.
Mask transposed(const Mask& mask);

}  // namespace magi
