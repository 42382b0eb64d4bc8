// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "magi/mask.hpp"

namespace magi::testing {

/// Documents one after the other.
inline Mask document_mask(const std::vector<std::int32_t>& lengths,
                          MaskType type = MaskType::Causal) {
  Mask mask;
  for (const std::int32_t length : lengths) {
    const Range rows{mask.rows_q, mask.rows_q + length};
    mask.slices.push_back(band_slice(rows, rows, type));
    mask.rows_q = mask.rows_k = rows.end;
  }
  return mask;
}

/// The queries that see some key, and the keys that some query sees.
struct Seen {
  std::vector<bool> queries, keys;

  explicit Seen(const Mask& mask)
      : queries(static_cast<std::size_t>(mask.rows_q)),
        keys(static_cast<std::size_t>(mask.rows_k)) {
    for (const BandSlice& slice : mask.slices) {
      for (std::int32_t row = 0; row < mask.rows_q; ++row) {
        const Range range = visible_keys(slice, row);
        if (range.empty()) continue;
        queries[static_cast<std::size_t>(row)] = true;
        std::fill(keys.begin() + range.begin, keys.begin() + range.end, true);
      }
    }
  }
};

}  // namespace magi::testing
