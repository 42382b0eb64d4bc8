// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/listed_keys.hpp"

namespace magi::cpu {

ListTotals count_lists(const KeyLists& lists, std::int32_t rows_k) {
  ListTotals totals;
  const auto& [rows, heads, entries, unused] = lists.indices.shape;
  for (std::int64_t token = 0; token < rows; ++token) {
    for (std::int64_t head = 0; head < heads; ++head) {
      for (std::int64_t at = 0; at < entries; ++at) {
        const std::int32_t entry = entry_of(lists.indices, token, head, at);
        const Range keys = keys_of_entry(entry, lists.block_keys, rows_k);
        totals.pairs += keys.size();
        if (entry == -1 || !keys.empty()) continue;
        if (totals.num_bad++ == 0) totals.first_bad = (token * heads + head) * entries + at;
      }
    }
  }
  return totals;
}

}  // namespace magi::cpu
