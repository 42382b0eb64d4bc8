// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>

namespace magi {

/// "1 slice", "2 slices": for nouns whose plural ends in s.
inline std::string counted(std::int64_t count, std::string_view noun) {
  return std::to_string(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}

/// "name[3]": an element of a list, in messages.
inline std::string element_name(std::string_view list, std::size_t index) {
  return std::string(list) + "[" + std::to_string(index) + "]";
}

/// "0x0123456789abcdef".
inline std::string hex(std::uint64_t value) {
  std::array<char, 16> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value, 16).ptr;
  const auto count = static_cast<std::size_t>(end - digits.data());
  return "0x" + std::string(digits.size() - count, '0') + std::string(digits.data(), count);
}

/// "No such file or directory" for ENOENT, without the race of strerror.
inline std::string system_text(int error) { return std::generic_category().message(error); }

}  // namespace magi
