// SPDX-License-Identifier: Apache-2.0
#include "plan/json_scanner.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/check.hpp"

namespace magi::planner {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/// Text for a message: short and printable, whatever the input held.
std::string printable(std::string_view text) {
  constexpr std::size_t kLongest = 40;
  std::string shown(text.substr(0, kLongest));
  for (char& c : shown) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text.size() > kLongest ? shown + "..." : shown;
}

std::string joined(std::span<const std::string_view> keys) {
  std::string text;
  for (const std::string_view key : keys) text += (text.empty() ? "" : ", ") + std::string(key);
  return text;
}

/// JSON's own form of numbers, which from_chars is laxer about: no leading zeros.
bool is_json_number(std::string_view token) {
  const std::size_t first = token.starts_with('-') ? 1 : 0;
  if (first >= token.size() || token[first] < '0' || token[first] > '9') return false;
  const bool has_second = first + 1 < token.size();
  return token[first] != '0' || !has_second || token[first + 1] < '0' || token[first + 1] > '9';
}

template <typename Number>
bool parse_all(std::string_view token, Number& value) {
  if (!is_json_number(token)) return false;
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), value);
  return error == std::errc{} && end == token.data() + token.size();
}

}  // namespace

std::string JsonScanner::path() const {
  std::string text;
  for (const PathPart& part : path_) {
    if (part.key.empty()) {
      text += "[" + std::to_string(part.index) + "]";
    } else {
      text += (text.empty() ? "" : ".") + std::string(part.key);
    }
  }
  return text;
}

void JsonScanner::refuse(std::string_view seen, std::string_view allowed) const {
  const std::string where = path();
  throw invalid(std::string(name_) + (where.empty() ? "" : ": ") + where, seen, allowed);
}

void JsonScanner::skip_space() {
  while (at_ < text_.size() && is_space(text_[at_])) ++at_;
}

/// What stands next, for a message.
std::string JsonScanner::next_shown() const {
  if (at_ >= text_.size()) return "cut off";
  std::size_t end = at_ + 1;
  while (end < text_.size() && !is_space(text_[end]) &&
         std::string_view(",]}").find(text_[end]) == std::string_view::npos) {
    ++end;
  }
  return printable(text_.substr(at_, end - at_));
}

void JsonScanner::expect(char c, std::string_view what) {
  skip_space();
  if (at_ >= text_.size() || text_[at_] != c) refuse(next_shown(), what);
  ++at_;
}

bool JsonScanner::at_end_of(char close, bool is_first) {
  skip_space();
  if (at_ < text_.size() && text_[at_] == close) {
    ++at_;
    return true;
  }
  if (!is_first) expect(',', std::string("a list with ',' and '") + close + "'");
  return false;
}

std::size_t JsonScanner::key(std::span<const std::string_view> keys, std::vector<bool>& seen) {
  const std::string_view name = string();
  const auto found = std::find(keys.begin(), keys.end(), name);
  if (found == keys.end()) refuse("holding key " + printable(name), joined(keys));
  const auto index = static_cast<std::size_t>(found - keys.begin());
  if (seen[index]) refuse("holding key " + printable(name) + " twice", "each key once");
  seen[index] = true;
  expect(':', "':' after a key");
  return index;
}

void JsonScanner::require_all(std::span<const std::string_view> keys,
                              const std::vector<bool>& seen) const {
  const auto missing = std::find(seen.begin(), seen.end(), false);
  if (missing == seen.end()) return;
  const auto index = static_cast<std::size_t>(missing - seen.begin());
  refuse("without key " + std::string(keys[index]), "all of " + joined(keys));
}

/// The characters of a number or word.
std::string_view JsonScanner::token() {
  skip_space();
  const std::size_t begin = at_;
  while (at_ < text_.size() && !is_space(text_[at_]) &&
         std::string_view(",]}:").find(text_[at_]) == std::string_view::npos) {
    ++at_;
  }
  return text_.substr(begin, at_ - begin);
}

std::int64_t JsonScanner::integer(std::int64_t low, std::int64_t high) {
  const std::string_view digits = token();
  std::int64_t value = 0;
  if (!parse_all(digits, value) || value < low || value > high) {
    refuse(digits.empty() ? next_shown() : printable(digits),
           "an integer from " + std::to_string(low) + " to " + std::to_string(high));
  }
  return value;
}

std::uint64_t JsonScanner::unsigned_integer() {
  const std::string_view digits = token();
  std::uint64_t value = 0;
  if (!parse_all(digits, value)) {
    refuse(digits.empty() ? next_shown() : printable(digits), "an integer from 0 to 2^64 - 1");
  }
  return value;
}

void JsonScanner::integers(std::span<std::int32_t> values, std::int32_t low, std::int32_t high) {
  const std::size_t size = array([&](std::size_t i) {
    if (i >= values.size()) refuse("one too many", std::to_string(values.size()) + " integers");
    values[i] = integer32(low, high);
  });
  if (size != values.size()) {
    refuse("an array of " + std::to_string(size), std::to_string(values.size()) + " integers");
  }
}

double JsonScanner::number() {
  const std::string_view digits = token();
  double value = 0.0;
  if (!parse_all(digits, value) || !std::isfinite(value)) {
    refuse(digits.empty() ? next_shown() : printable(digits), "a finite number");
  }
  return value;
}

bool JsonScanner::boolean() {
  const std::string_view word = token();
  if (word == "true") return true;
  if (word != "false") refuse(word.empty() ? next_shown() : printable(word), "true, false");
  return false;
}

std::string_view JsonScanner::string() {
  expect('"', "a string");
  const std::size_t begin = at_;
  while (at_ < text_.size() && text_[at_] != '"') {
    if (text_[at_] < ' ' || text_[at_] > '~' || text_[at_] == '\\') {
      refuse("a string with '" + printable(text_.substr(at_, 1)) + "'", "plain ASCII strings");
    }
    ++at_;
  }
  const std::string_view value = text_.substr(begin, at_ - begin);
  if (at_ >= text_.size()) refuse("cut off", "a string that ends");
  ++at_;
  return value;
}

bool JsonScanner::null() {
  skip_space();
  if (text_.substr(at_, 4) != "null") return false;
  at_ += 4;
  return true;
}

void JsonScanner::finish() {
  skip_space();
  if (at_ < text_.size()) refuse("followed by " + next_shown(), "one JSON object");
}

}  // namespace magi::planner
