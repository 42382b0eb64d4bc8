// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "magi/mask.hpp"

namespace magi {

/// The table that placement needs of a mask: per chunk of query rows its area and the keys it sees.
struct ChunkTable {
  std::int32_t num_rows = 0;  ///< padded
  std::int32_t chunk_size = 0;
  std::vector<std::int64_t> area;       ///< [num_chunks], a pair in n slices counting n times
  std::vector<std::int32_t> key_begin;  ///< [num_chunks + 1] into keys
  std::vector<Range> keys;              ///< per chunk: ascending, disjoint, not touching

  std::int32_t num_chunks() const { return static_cast<std::int32_t>(area.size()); }
  Range rows(std::int32_t chunk) const;
  std::span<const Range> keys_of(std::int32_t chunk) const;
  std::int64_t total_area() const;
};

/// Cuts the slices of `mask` at chunk boundaries. `num_rows` (padded) must hold all query rows.
ChunkTable make_chunk_table(const Mask& mask, std::int32_t num_rows, std::int32_t chunk_size);

/// Sorts ranges and joins those that overlap or touch; empty ones go.
void merge_ranges(std::vector<Range>& ranges);
/// Rows in both of two merged lists.
std::int64_t intersection_rows(std::span<const Range> a, std::span<const Range> b);
/// Rows of a merged list.
std::int64_t count_rows(std::span<const Range> ranges);

}  // namespace magi
