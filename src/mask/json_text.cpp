// SPDX-License-Identifier: Apache-2.0
#include "mask/json_text.hpp"

#include <nlohmann/json.hpp>

#include "base/check.hpp"

namespace magi {

std::string quoted_text(const std::string& text) {
  constexpr std::size_t kShown = 40;
  const nlohmann::json shown(text.substr(0, kShown + 1));
  return printable(shown.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace), kShown);
}

InvalidArgument not_well_formed(const std::exception& error) {
  const std::string text = error.what();
  const std::size_t prefix = text.find("] ");
  const std::string reason =
      printable(prefix == std::string::npos ? text : text.substr(prefix + 2), 200);
  return invalid("mask JSON", "not well formed (" + reason + ")", "one JSON object");
}

std::string integer_text(std::int32_t low, std::int32_t high) {
  return "an integer from " + std::to_string(low) + " to " + std::to_string(high);
}

}  // namespace magi
