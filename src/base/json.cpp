// SPDX-License-Identifier: Apache-2.0
#include "base/json.hpp"

#include <charconv>
#include <cmath>
#include <limits>

namespace magi::json {
namespace {

constexpr std::int64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();

template <typename Number>
bool append(std::string& out, Number value) {
  // 40 characters hold the shortest exact form of any number.
  std::array<char, 40> digits;
  const auto result = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  out.append(digits.data(), result.ptr);
  return true;
}

bool is_between(const Scalar& seen, std::int64_t low, std::int64_t high) {
  return seen.kind == Scalar::Kind::Integer && seen.integer >= low && seen.integer <= high;
}

template <typename Integer>
Value integer_between(Integer& target, Integer low, Integer high) {
  Value value{.allowed = integer_between_text(low, high)};
  value.take = [&target, low, high](const Scalar& seen) {
    if (!is_between(seen, low, high)) return false;
    target = static_cast<Integer>(seen.integer);
    return true;
  };
  value.write_scalar = [&target](std::string& out) { return append(out, target); };
  return value;
}

template <typename Integer>
Value optional_between(std::optional<Integer>& target, Integer low, Integer high) {
  Value value{.allowed = integer_between_text(low, high) + ", or null"};
  value.take = [&target, low, high](const Scalar& seen) {
    target.reset();
    if (is_between(seen, low, high)) target = static_cast<Integer>(seen.integer);
    return target.has_value() || seen.kind == Scalar::Kind::Null;
  };
  value.write_scalar = [&target](std::string& out) {
    return target ? append(out, *target) : !(out += "null").empty();
  };
  return value;
}

template <typename Integer>
Value integer_list(std::vector<Integer>& target, Integer low, Integer high) {
  Value value{.allowed = integer_between_text(low, high)};
  value.add_integer = [&target, low, high](std::int64_t element) {
    if (element < low || element > high) return false;
    target.push_back(static_cast<Integer>(element));
    return true;
  };
  value.integer_at = [&target](std::size_t i) { return std::int64_t{target[i]}; };
  value.size = [&target] { return target.size(); };
  return value;
}

void write_to(const Value& value, std::string& out);

void write_row(const Value& table, std::size_t row, std::string& out) {
  std::array<std::int32_t, kMaxColumns> cells{};
  table.copy_row(row, cells);
  for (std::size_t i = 0; i < table.columns.size(); ++i) {
    out += i == 0 ? '[' : ',';
    if (table.columns[i].null == cells[i]) {
      out += "null";
    } else {
      append(out, cells[i]);
    }
  }
  out += ']';
}

void write_object(const Value& value, std::string& out) {
  out += '{';
  bool is_first = true;
  for (const Field& field : value.open()) {
    if (field.is_default.value_or(false)) continue;
    if (!std::exchange(is_first, false)) out += value.separator;
    out += '"';
    out += field.key;
    out += "\": ";
    write_to(field.value, out);
  }
  out += '}';
}

void write_to(const Value& value, std::string& out) {
  if (value.write_scalar && value.write_scalar(out)) return;
  if (value.open) return write_object(value, out);
  out += '[';
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (i > 0) out += value.separator;
    if (value.integer_at) {
      append(out, value.integer_at(i));
    } else if (value.copy_row) {
      write_row(value, i, out);
    } else {
      write_to(value.element(i), out);
    }
  }
  out += ']';
}

}  // namespace

std::string integer_between_text(std::int64_t low, std::int64_t high) {
  return "an integer from " + std::to_string(low) + " to " + std::to_string(high);
}

Value integer(std::int32_t& target, std::int32_t low, std::int32_t high) {
  return integer_between(target, low, high);
}

Value integer64(std::int64_t& target) {
  return integer_between<std::int64_t>(target, 0, kMaxInt64);
}

Value unsigned64(std::uint64_t& target) {
  Value value{.allowed = "an integer from 0 to 2^64 - 1"};
  value.take = [&target](const Scalar& seen) {
    target = seen.wide_integer;
    return seen.kind == Scalar::Kind::Unsigned || is_between(seen, 0, kMaxInt64);
  };
  value.write_scalar = [&target](std::string& out) { return append(out, target); };
  return value;
}

Value optional_integer(std::optional<std::int32_t>& target, std::int32_t low, std::int32_t high) {
  return optional_between(target, low, high);
}

Value optional_integer64(std::optional<std::int64_t>& target) {
  return optional_between<std::int64_t>(target, 0, kMaxInt64);
}

Value number(double& target) {
  Value value{.allowed = "a finite number"};
  value.take = [&target](const Scalar& seen) {
    target = seen.number;
    return (seen.kind == Scalar::Kind::Integer || seen.kind == Scalar::Kind::Unsigned ||
            seen.kind == Scalar::Kind::Number) &&
           std::isfinite(target);
  };
  value.write_scalar = [&target](std::string& out) { return append(out, target); };
  return value;
}

Value boolean(bool& target) {
  Value value{.allowed = "true, false"};
  value.take = [&target](const Scalar& seen) {
    target = seen.integer != 0;
    return seen.kind == Scalar::Kind::Boolean;
  };
  value.write_scalar = [&target](std::string& out) {
    return !(out += target ? "true" : "false").empty();
  };
  return value;
}

Value text(std::string allowed, std::function<bool(std::string_view)> take,
           std::function<std::string()> write) {
  Value value{.allowed = std::move(allowed)};
  value.take = [take = std::move(take)](const Scalar& seen) {
    return seen.kind == Scalar::Kind::Text && take(seen.shown);
  };
  value.write_scalar = [write = std::move(write)](std::string& out) {
    return !(out += '"' + write() + '"').empty();
  };
  return value;
}

Value constant(std::string_view name) {
  return text(
      std::string(name), [name](std::string_view seen) { return seen == name; },
      [name] { return std::string(name); });
}

Value version(std::int64_t number, std::string allowed) {
  Value value{.allowed = std::move(allowed)};
  value.take = [number](const Scalar& seen) {
    return seen.kind == Scalar::Kind::Integer && seen.integer == number;
  };
  value.write_scalar = [number](std::string& out) { return append(out, number); };
  return value;
}

Value object(std::function<std::vector<Field>()> open, std::string_view separator) {
  Value value{.allowed = "an object"};
  value.open = std::move(open);
  value.separator = separator;
  return value;
}

Value integers(std::vector<std::int32_t>& target, std::int32_t low, std::int32_t high) {
  return integer_list(target, low, high);
}

Value integers64(std::vector<std::int64_t>& target) {
  return integer_list<std::int64_t>(target, 0, kMaxInt64);
}

std::string write(const Value& value) {
  std::string out;
  write_to(value, out);
  return out;
}

}  // namespace magi::json
