// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// A schema of JSON values over structs: stated once, it reads and writes. Reading takes a text
// event by event and keeps nothing but what the schema names.
namespace magi::json {

struct Field;

/// A number, word or string of a text. `shown` is what a message shows of it.
struct Scalar {
  enum class Kind { Null, Boolean, Integer, Unsigned, Number, Text };
  Kind kind = Kind::Null;
  std::int64_t integer = 0;        ///< Integer; Boolean: 0 or 1
  std::uint64_t wide_integer = 0;  ///< Unsigned: above int64; Integer if not negative
  double number = 0.0;             ///< of all three
  std::string_view shown;          ///< Text: the string itself
};

/// The values that a cell of a table may hold; `null` is written for the value that it stands for.
struct Column {
  std::int32_t low = 0;
  std::int32_t high = 0;
  std::optional<std::int32_t> null;
};
inline constexpr std::size_t kMaxColumns = 8;

/// One value, bound to the variable that it is read into and written from: a scalar, an object, an
/// array of values or of integers, or a table, which is an array of rows of integers (and of
/// objects where it has an `element`). What it is not stays empty.
struct Value {
  std::string allowed;  ///< what may stand here, for messages

  std::function<bool(const Scalar&)> take;         ///< false: refused
  std::function<bool(std::string&)> write_scalar;  ///< false: it is none at the moment

  std::function<std::vector<Field>()> open;  ///< members of an object, which then exists
  std::function<void()> close;  ///< after the last member or element was read; may be empty

  std::function<void()> begin;                    ///< before an array is read; may be empty
  std::function<Value(std::size_t)> element;      ///< of an array; one after the end is appended
  std::function<bool(std::int64_t)> add_integer;  ///< of an array of integers; false: refused
  bool has_flags = false;  ///< of an array of integers: true and false stand for 1 and 0
  std::function<std::int64_t(std::size_t)> integer_at;
  std::vector<Column> columns;  ///< of a table
  std::function<void(std::span<const std::int32_t>)> add_row;
  std::function<void(std::size_t, std::span<std::int32_t>)> copy_row;
  std::function<std::size_t()> size;  ///< elements or rows

  std::string_view separator = ",";  ///< between members, elements or rows
};

struct Field {
  std::string_view key;
  Value value;
  /// Given: the key may be missing, and is not written while its variable has the value that it has
  /// without it.
  std::optional<bool> is_default = std::nullopt;
};

std::string integer_between_text(std::int64_t low, std::int64_t high);

Value integer(std::int32_t& target, std::int32_t low, std::int32_t high);
Value integer64(std::int64_t& target);  ///< from 0 on
Value unsigned64(std::uint64_t& target);
Value optional_integer(std::optional<std::int32_t>& target, std::int32_t low, std::int32_t high);
Value optional_integer64(std::optional<std::int64_t>& target);  ///< from 0 on
Value number(double& target);                                   ///< finite
Value boolean(bool& target);
/// A string that `take` accepts.
Value text(std::string allowed, std::function<bool(std::string_view)> take,
           std::function<std::string()> write);
/// A string that is always the same; `name` outlives the value.
Value constant(std::string_view name);
/// The one integer that a reader takes; `allowed` tells more of it.
Value version(std::int64_t number, std::string allowed);
Value object(std::function<std::vector<Field>()> open, std::string_view separator = ",\n");
/// Arrays of plain integers.
Value integers(std::vector<std::int32_t>& target, std::int32_t low, std::int32_t high);
Value integers64(std::vector<std::int64_t>& target);  ///< from 0 on

/// Records as rows of integers; `names` says what the columns are.
template <typename Record, std::size_t kSize>
Value table(std::vector<Record>& records, std::string names,
            const std::array<Column, kSize>& columns,
            std::array<std::int32_t, kSize> (*pack)(const Record&),
            Record (*unpack)(std::span<const std::int32_t>)) {
  static_assert(kSize <= kMaxColumns);
  Value value{.allowed = std::move(names)};
  value.columns.assign(columns.begin(), columns.end());
  value.add_row = [&records, unpack](auto row) { records.push_back(unpack(row)); };
  value.copy_row = [&records, pack](std::size_t i, std::span<std::int32_t> row) {
    std::ranges::copy(pack(records[i]), row.begin());
  };
  value.size = [&records] { return records.size(); };
  return value;
}

/// Text of a value; one record per line in long tables, so that files compare well.
std::string write(const Value& value);

/// Reads `text`, which messages call `name`. Throws InvalidArgument, naming the path of what is
/// refused, for all that is not the schema's: other, repeated and missing keys, values out of
/// bounds, arrays of another shape, text after the value, and no JSON at all.
void read(std::string_view text, std::string_view name, Value value);

}  // namespace magi::json
