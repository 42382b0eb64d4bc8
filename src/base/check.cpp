// SPDX-License-Identifier: Apache-2.0
#include "base/check.hpp"

namespace magi {

void throw_broken_invariant(const char* condition, const char* file, int line) {
  const std::string_view path = file;
  const auto name = path.substr(path.find_last_of('/') + 1);
  std::ostringstream text;
  text << "broken invariant: " << condition << " (" << name << ":" << line << ")";
  throw InternalError(text.str());
}

}  // namespace magi
