// SPDX-License-Identifier: Apache-2.0
#include "common/values.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/check.hpp"

namespace magi::cli {
namespace {

std::string allowed_ints(Bounds bounds) {
  return "an integer from " + std::to_string(bounds.low) + " to " + std::to_string(bounds.high);
}

/// Nothing for a text that is no integer, or one outside the bounds.
std::optional<std::int64_t> int_within(std::string_view text, Bounds bounds) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_int = error == std::errc{} && end == text.data() + text.size();
  if (!is_int || value < bounds.low || value > bounds.high) return std::nullopt;
  return value;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

}  // namespace

std::string shown(std::string_view text) {
  constexpr std::size_t kMostCharacters = 60;
  std::string line = "'";
  for (const char c : text.substr(0, kMostCharacters)) {
    const auto code = static_cast<unsigned char>(c);
    line += code < 0x20 || code == 0x7f ? '?' : c;
  }
  if (text.size() > kMostCharacters) line += "...";
  return line + "'";
}

std::int64_t parse_int(std::string_view flag, std::string_view text, Bounds bounds) {
  const std::optional<std::int64_t> value = int_within(text, bounds);
  if (!value) throw invalid(flag, shown(text), allowed_ints(bounds));
  return *value;
}

std::optional<std::int64_t> parse_int_or_auto(std::string_view flag, std::string_view text,
                                              Bounds bounds) {
  if (text == "auto") return std::nullopt;
  const std::optional<std::int64_t> value = int_within(text, bounds);
  if (!value) throw invalid(flag, shown(text), "auto or " + allowed_ints(bounds));
  return value;
}

double parse_number(std::string_view flag, std::string_view text, double low, double high) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !(value >= low) ||
      !(value <= high)) {
    std::ostringstream allowed;
    allowed << "a number from " << low << " to " << high;
    throw invalid(flag, shown(text), allowed.str());
  }
  return value;
}

std::vector<std::string> split_list(std::string_view text) {
  const std::vector<std::string_view> parts = split(text, ',');
  return {parts.begin(), parts.end()};
}

std::vector<std::string> parse_names(std::string_view flag, std::string_view text,
                                     const std::vector<std::string>& known) {
  std::vector<std::string> names = split_list(text);
  std::string allowed;
  for (const std::string& name : known) allowed += (allowed.empty() ? "" : ", ") + name;
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      throw invalid(flag, shown(name), allowed);
    }
  }
  return names;
}

std::vector<std::int32_t> parse_ints(std::string_view flag, std::string_view text, Bounds bounds) {
  std::vector<std::int32_t> values;
  for (const std::string_view part : split(text, ',')) {
    const std::string element = std::string(flag) + "[" + std::to_string(values.size()) + "]";
    values.push_back(static_cast<std::int32_t>(parse_int(element, part, bounds)));
  }
  return values;
}

std::pair<std::int32_t, std::int32_t> parse_pair(std::string_view flag, std::string_view text,
                                                 char separator, Bounds bounds) {
  const std::vector<std::string_view> parts = split(text, separator);
  if (parts.size() != 2) {
    throw invalid(flag, shown(text),
                  std::string("two integers with '") + separator + "' between, each from " +
                      std::to_string(bounds.low) + " to " + std::to_string(bounds.high));
  }
  return {static_cast<std::int32_t>(parse_int(flag, parts[0], bounds)),
          static_cast<std::int32_t>(parse_int(flag, parts[1], bounds))};
}

std::optional<std::int64_t> count_of(std::string_view text) {
  constexpr std::int64_t kKilo = 1024;
  const std::int64_t unit = text.ends_with('k') ? kKilo : 1;
  if (unit == kKilo) text.remove_suffix(1);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_read = error == std::errc{} && end == text.data() + text.size();
  if (!is_read || value < 0 || value > std::numeric_limits<std::int64_t>::max() / kKilo) return {};
  return value * unit;
}

std::pair<std::int32_t, std::int32_t> parse_heads(std::string_view flag, std::string_view text) {
  const auto heads = parse_pair(flag, text, ':', {1, 1024});
  if (heads.first % heads.second == 0) return heads;
  throw invalid(flag, shown(text), "query heads that are a multiple of the kv heads");
}

}  // namespace magi::cli
