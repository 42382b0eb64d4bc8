// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>

#include "magi/error.hpp"

namespace magi {

/// `text` as a part of one line of a message: printable ASCII stays, each other byte is shown as
/// \xNN. What would be longer than `longest` characters is cut, and "..." follows.
std::string printable(std::string_view text, std::size_t longest);

/// Longest text that invalid() shows of a value.
inline constexpr std::size_t kLongestValue = 300;

/// The one form of message for bad arguments: "<argument> is <value>; allowed: <allowed>". A value
/// that is text may come from anywhere, so that it is shown by printable().
template <typename Value>
InvalidArgument invalid(std::string_view argument, const Value& value, std::string_view allowed) {
  std::ostringstream text;
  text << argument << " is ";
  if constexpr (std::is_convertible_v<const Value&, std::string_view>) {
    text << printable(value, kLongestValue);
  } else {
    text << value;
  }
  text << "; allowed: " << allowed;
  return InvalidArgument(text.str());
}

/// A flag of a C struct. Any other number is what nobody has set.
inline bool read_flag(std::int32_t value, std::string_view name) {
  if (value != 0 && value != 1) throw invalid(name, value, "0 or 1");
  return value == 1;
}

[[noreturn]] void throw_broken_invariant(const char* condition, const char* file, int line);

}  // namespace magi

/// States an invariant of the library; a failure throws InternalError with the text of the
/// condition.
#define MAGI_CHECK(condition) \
  ((condition) ? void(0) : ::magi::throw_broken_invariant(#condition, __FILE__, __LINE__))
