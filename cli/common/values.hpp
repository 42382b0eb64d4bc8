// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Values of flags. Every refusal is an InvalidArgument that gives flag, value seen and values
// allowed.
namespace magi::cli {

struct Bounds {
  std::int64_t low = 0;
  std::int64_t high = 0;
};

inline constexpr Bounds kExchangeBytes{0, std::int64_t{1} << 60};  ///< of --max-exchange-bytes

std::int64_t parse_int(std::string_view flag, std::string_view text, Bounds bounds);
/// Nothing for "auto".
std::optional<std::int64_t> parse_int_or_auto(std::string_view flag, std::string_view text,
                                              Bounds bounds);
double parse_number(std::string_view flag, std::string_view text, double low, double high);

/// The parts of "a,b,c", one at least.
std::vector<std::string> split_list(std::string_view text);
/// Such parts, each of them one of `known`.
std::vector<std::string> parse_names(std::string_view flag, std::string_view text,
                                     const std::vector<std::string>& known);

/// "a,b,c", at least one.
std::vector<std::int32_t> parse_ints(std::string_view flag, std::string_view text, Bounds bounds);

/// "left<separator>right", both inside `bounds`.
std::pair<std::int32_t, std::int32_t> parse_pair(std::string_view flag, std::string_view text,
                                                 char separator, Bounds bounds);

/// "8192", or "8k" for 8 * 1024; nothing for any other text.
std::optional<std::int64_t> count_of(std::string_view text);

/// "64:8": query heads, which are a multiple of the kv heads, and kv heads; 1 to 1024.
std::pair<std::int32_t, std::int32_t> parse_heads(std::string_view flag, std::string_view text);

/// The text fit for one line of a message: quoted, printable, at most 60 characters.
std::string shown(std::string_view text);

}  // namespace magi::cli
