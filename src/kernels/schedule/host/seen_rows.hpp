// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/host_device.hpp"
#include "magi/mask.hpp"

// Rows that a mask leaves out: queries that see no key, keys that no query sees. They may hold NaN,
// so tiles must not multiply them, not even by zero.
namespace magi {

inline constexpr std::int32_t kSeenBits = 32;  ///< rows of a word

/// Words of one bit per row. A tile may reach past the last row, and reads one word more.
MAGI_HOST_DEVICE std::int32_t num_seen_words(std::int32_t rows) { return rows / kSeenBits + 6; }

/// Bit r % 32 of word r / 32: row r is seen. Without words every row is.
struct SeenRows {
  std::vector<std::uint32_t> queries;
  std::vector<std::uint32_t> keys;
};

SeenRows find_seen_rows(std::int32_t rows_q, std::int32_t rows_k,
                        std::span<const BandSlice> slices);

}  // namespace magi
