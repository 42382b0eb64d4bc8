// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "kernels/cpu/rows.hpp"
#include "kernels/cpu/strips.hpp"
#include "magi/key_lists.hpp"

// How kernels walk the lists of keys. A list's keys are gathered into blocks of columns, where all
// rows of a tile, which are heads of one query, see all columns.
namespace magi::cpu {

/// Keys of an entry; empty where it is no block of the keys.
inline Range keys_of_entry(std::int32_t entry, std::int32_t block_keys, std::int32_t rows_k) {
  const std::int64_t begin = std::int64_t{entry} * block_keys;
  if (entry < 0 || begin >= rows_k) return {};
  const std::int64_t end = std::min<std::int64_t>(begin + block_keys, rows_k);
  return {static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end)};
}

inline std::int32_t entry_of(const TensorView& indices, std::int64_t token, std::int64_t kv_head,
                             std::int64_t at) {
  return static_cast<const std::int32_t*>(
      indices.data)[row_offset(indices, token, kv_head) + at * indices.stride[2]];
}

/// One list, and the keys of it that are wanted.
struct ListedQuery {
  std::int64_t token = 0;
  std::int64_t kv_head = 0;
  Range within;
};

/// Calls visit(std::span<const std::int32_t> keys) for the keys of a list that lie in
/// query.within, at most kBlockCols at a time, in the order of the list.
template <typename Visit>
void for_each_listed_block(const KeyLists& lists, std::int32_t rows_k, const ListedQuery& query,
                           const Visit& visit) {
  std::array<std::int32_t, kBlockCols> keys;
  std::size_t count = 0;
  for (std::int64_t at = 0; at < lists.indices.shape[2]; ++at) {
    const Range found = keys_of_entry(entry_of(lists.indices, query.token, query.kv_head, at),
                                      lists.block_keys, rows_k);
    const std::int32_t end = std::min(found.end, query.within.end);
    for (std::int32_t key = std::max(found.begin, query.within.begin); key < end; ++key) {
      keys[count++] = key;
      if (count < keys.size()) continue;
      visit(std::span<const std::int32_t>(keys));
      count = 0;
    }
  }
  if (count > 0) visit(std::span<const std::int32_t>(keys.data(), count));
}

/// Calls visit(Strip) for strips of `num_rows` rows that all see columns [0, num_cols).
template <typename Visit>
void for_each_full_strip(std::int64_t num_rows, std::int32_t num_cols, std::int32_t panel_cols,
                         const Visit& visit) {
  Strip strip{.cols = {0, num_cols}, .panels = {0, align_up(num_cols, panel_cols)}};
  strip.visible.fill(strip.cols);
  for (strip.row = 0; strip.row < num_rows; strip.row += kStripRows) {
    strip.num_rows =
        static_cast<std::int32_t>(std::min<std::int64_t>(kStripRows, num_rows - strip.row));
    visit(strip);
  }
}

/// Visible pairs of all kv heads together, and entries that are no block.
struct ListTotals {
  std::int64_t pairs = 0;
  std::int64_t num_bad = 0;
  std::int64_t first_bad = -1;  ///< in row-major indices
};
ListTotals count_lists(const KeyLists& lists, std::int32_t rows_k);

}  // namespace magi::cpu
