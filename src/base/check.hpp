// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sstream>
#include <string>
#include <string_view>

#include "magi/error.hpp"

namespace magi {

/// The one form of message for bad arguments: "<argument> is <value>; allowed: <allowed>".
template <typename Value>
InvalidArgument invalid(std::string_view argument, const Value& value, std::string_view allowed) {
  std::ostringstream text;
  text << argument << " is " << value << "; allowed: " << allowed;
  return InvalidArgument(text.str());
}

[[noreturn]] void throw_broken_invariant(const char* condition, const char* file, int line);

}  // namespace magi

/// States an invariant of the library; a failure throws InternalError with the text of the
/// condition.
#define MAGI_CHECK(condition) \
  ((condition) ? void(0) : ::magi::throw_broken_invariant(#condition, __FILE__, __LINE__))
