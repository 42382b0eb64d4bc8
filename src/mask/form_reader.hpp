// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "magi/mask.hpp"

// Masks as JSON in the terms of another program: {"form": "tree", "parents": [...], ...}. A form
// says which keys it has and makes the mask of their values.
namespace magi::forms {

enum class Kind {
  Integer,
  Flag,  ///< true or false
  List,  ///< an array of integers
  Table  ///< an array of arrays of integers; where these are 0 or 1, true and false are too
};

struct Field {
  std::string_view name;
  Kind kind = Kind::List;
  std::int32_t low = 0;  ///< of every integer
  std::int32_t high = kMaxRows;
  bool is_required = true;
};

/// The value that a text gives for a field.
struct Value {
  bool is_given = false;
  std::vector<std::int32_t> numbers;     ///< of all rows of a table; one of an integer or flag
  std::vector<std::int64_t> offsets{0};  ///< of the rows of a table, in numbers

  std::size_t num_rows() const { return offsets.size() - 1; }
  std::span<const std::int32_t> row(std::size_t index) const {
    const auto begin = static_cast<std::size_t>(offsets[index]);
    return std::span(numbers).subspan(begin, static_cast<std::size_t>(offsets[index + 1]) - begin);
  }
};

struct Form {
  std::string_view name;
  std::span<const Field> fields;
  /// Values in the order of the fields. Throws InvalidArgument naming the key that is wrong.
  Mask (*make)(std::span<const Value> values);
};

/// All forms, by name.
std::span<const Form> all_forms();

/// "a, b, c" of what has names.
template <typename Named>
std::string names_of(std::span<const Named> all) {
  std::string text;
  for (const Named& one : all) text += (text.empty() ? "" : ", ") + std::string(one.name);
  return text;
}

/// Reads a text whose first key is "form" and has this value. Whatever the text, the only exception
/// is InvalidArgument.
Mask mask_from_form(std::string_view text, std::string_view name);

}  // namespace magi::forms
