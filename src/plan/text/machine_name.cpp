// SPDX-License-Identifier: Apache-2.0
#include "plan/text/machine_name.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace magi::planner {
namespace {

constexpr std::size_t kLongest = 200;
constexpr const char* kAllowed =
    "1 to 200 printable characters of ASCII without quotes and backslashes";

/// Texts are written as they are: nothing in them needs an escape.
bool is_plain(std::string_view text) {
  const auto is_plain_character = [](char c) {
    return c >= ' ' && c <= '~' && c != '"' && c != '\\';
  };
  return !text.empty() && text.size() <= kLongest && std::ranges::all_of(text, is_plain_character);
}

}  // namespace

json::Value machine_name(std::string& target) {
  return json::text(
      kAllowed,
      [&target](std::string_view seen) {
        target = seen;
        return is_plain(seen);
      },
      [&target] { return target; });
}

void require_machine_name(const std::string& name) {
  if (!is_plain(name)) throw invalid("machine", '"' + name + '"', kAllowed);
}

}  // namespace magi::planner
