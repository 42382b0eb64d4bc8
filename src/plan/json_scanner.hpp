// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace magi::planner {

/// Reads JSON of a known shape straight from its text, without a document in between: memory never
/// exceeds what the text itself spells out, nesting is bounded by the reader's own calls, keys may
/// come in any order but each exactly once. Every refusal is one InvalidArgument that names the
/// path of the value. Strings are plain printable ASCII without escapes.
class JsonScanner {
 public:
  /// `name` starts every message.
  JsonScanner(std::string_view text, std::string_view name) : text_(text), name_(name) {}

  /// Calls read(i) for key keys[i], in the order of the text.
  template <typename Read>
  void object(std::span<const std::string_view> keys, Read&& read) {
    expect('{', "an object");
    std::vector<bool> seen(keys.size(), false);
    for (bool is_first = true; !at_end_of('}', is_first); is_first = false) {
      const std::size_t index = key(keys, seen);
      path_.push_back({keys[index], 0});
      read(index);
      path_.pop_back();
    }
    require_all(keys, seen);
  }

  /// Calls read(i) for element i. Returns their number.
  template <typename Read>
  std::size_t array(Read&& read) {
    expect('[', "an array");
    std::size_t size = 0;
    for (; !at_end_of(']', size == 0); ++size) {
      path_.push_back({{}, size});
      read(size);
      path_.pop_back();
    }
    return size;
  }

  /// An array of exactly values.size() integers within [low, high].
  void integers(std::span<std::int32_t> values, std::int32_t low, std::int32_t high);
  std::int64_t integer(std::int64_t low, std::int64_t high);
  std::int32_t integer32(std::int32_t low, std::int32_t high) {
    return static_cast<std::int32_t>(integer(low, high));
  }
  std::uint64_t unsigned_integer();
  double number();
  bool boolean();
  std::string_view string();
  /// Consumes a null if one is next.
  bool null();
  /// Only white space may remain.
  void finish();

  /// Refuses the value at hand.
  [[noreturn]] void refuse(std::string_view seen, std::string_view allowed) const;

 private:
  struct PathPart {
    std::string_view key;  ///< empty: element `index`
    std::size_t index = 0;
  };

  void skip_space();
  void expect(char c, std::string_view what);
  bool at_end_of(char close, bool is_first);
  std::size_t key(std::span<const std::string_view> keys, std::vector<bool>& seen);
  void require_all(std::span<const std::string_view> keys, const std::vector<bool>& seen) const;
  std::string_view token();
  std::string next_shown() const;
  std::string path() const;

  std::string_view text_;
  std::string_view name_;
  std::size_t at_ = 0;
  std::vector<PathPart> path_;
};

}  // namespace magi::planner
