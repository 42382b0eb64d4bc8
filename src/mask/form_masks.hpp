// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/words.hpp"
#include "mask/form_reader.hpp"
#include "mask/slice_lists.hpp"

// The masks of forms, of values in the order of their fields.
namespace magi::forms {

using Values = std::span<const Value>;

Mask of_cu_seqlens(Values values);
Mask of_document_ids(Values values);
Mask of_window(Values values);
Mask of_prefix_lm(Values values);
Mask of_packed_seq_params(Values values);

Mask of_tree(Values values);
Mask of_token_ids(Values values);

Mask of_flashmask(Values values);
Mask of_interval_ends(Values values);
Mask of_intervals(Values values);
Mask of_block_mask(Values values);
Mask of_matrix(Values values);

inline std::int32_t integer_or(const Value& value, std::int32_t otherwise) {
  return value.is_given ? value.numbers[0] : otherwise;
}
inline bool flag_or(const Value& value, bool otherwise) {
  return value.is_given ? value.numbers[0] != 0 : otherwise;
}
/// Throws for a number of entries other than `count`, which `reason` explains.
void check_count(std::string_view name, std::size_t found, std::size_t count,
                 std::string_view reason);
/// Throws unless a list begins with 0 and does not fall.
void check_bounds(std::string_view name, std::span<const std::int32_t> bounds);
/// The length of the rows of a table, which must agree; 0 without rows.
std::size_t width_of(std::string_view name, const Value& table);
/// The same pairs in the slices to which they come row by row; as given where that would take long.
Mask compacted(Mask mask);

}  // namespace magi::forms
