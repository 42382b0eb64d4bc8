// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/host_device.hpp"
#include "magi/mask.hpp"

// Rows that a mask leaves out: queries that see no key, keys that no query sees. What stands in
// them may be NaN, so that a tile must not multiply it, by zero neither.
namespace magi {

inline constexpr std::int32_t kSeenBits = 32;  ///< rows of a word

/// Words of a bit per row. A tile may reach behind the last row, and reads one word more.
MAGI_HOST_DEVICE std::int32_t num_seen_words(std::int32_t rows) { return rows / kSeenBits + 6; }

/// Bit r % 32 of word r / 32: row r is seen; no words at all: every row is.
struct SeenRows {
  std::vector<std::uint32_t> queries;
  std::vector<std::uint32_t> keys;
};

SeenRows find_seen_rows(std::int32_t rows_q, std::int32_t rows_k,
                        std::span<const BandSlice> slices);

}  // namespace magi
