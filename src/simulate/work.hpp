// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "magi/mask.hpp"

namespace magi::simulate {

/// The work that an attention call computes for each head.
struct Work {
  std::int64_t area = 0;   ///< visible pairs, a pair in n slices counting n times
  std::int64_t rows = 0;   ///< query rows of all slices
  std::int64_t edges = 0;  ///< the same, each counted once for every bound of its slice's diagonals

  void add(const BandSlice& slice);
  friend bool operator==(const Work&, const Work&) = default;
};

/// Visible pairs of all heads: beyond 2^63 for masks of a billion rows.
inline double pairs_of_heads(std::int64_t area, std::int64_t num_heads) {
  return static_cast<double>(area) * static_cast<double>(num_heads);
}

/// Which member of a group holds a chunk of rows.
enum class RowOrder : std::int32_t {
  Contiguous,  ///< member i holds the i-th equal part
  Zigzag,      ///< and the i-th part from the front and the i-th from the back, of twice as many
};

/// Rows in equal parts, the last of which may be short or empty.
struct RowParts {
  std::int32_t num_rows = 0;
  std::int32_t num_members = 1;
  RowOrder order = RowOrder::Contiguous;

  std::int32_t num_chunks() const {
    return order == RowOrder::Zigzag ? 2 * num_members : num_members;
  }
  std::int32_t chunk_size() const { return (num_rows + num_chunks() - 1) / num_chunks(); }
  std::int32_t owner(std::int32_t chunk) const {
    return order == RowOrder::Zigzag ? std::min(chunk, num_chunks() - 1 - chunk) : chunk;
  }
  /// Rows of each member, those of padding included, which travel too.
  std::int64_t rows_of_member() const {
    return std::int64_t{chunk_size()} * (num_chunks() / num_members);
  }
};

Work work_of(std::span<const BandSlice> slices);
/// Work of each member's queries over all keys.
std::vector<Work> query_work(const Mask& mask, const RowParts& parts);
/// Work of each member's queries (row) over each member's keys (column), [num_members *
/// num_members].
std::vector<Work> pair_work(const Mask& mask, const RowParts& parts);

}  // namespace magi::simulate
