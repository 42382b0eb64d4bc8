// SPDX-License-Identifier: Apache-2.0
#include "base/check.hpp"

namespace magi {

std::string printable(std::string_view text, std::size_t longest) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string shown;
  for (const char c : text) {
    std::string piece(1, c);
    if (c < ' ' || c > '~') {
      const auto byte = static_cast<unsigned char>(c);
      piece = {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 0xf]};
    }
    if (shown.size() + piece.size() > longest) return shown + "...";
    shown += piece;
  }
  return shown;
}

void throw_broken_invariant(const char* condition, const char* file, int line) {
  const std::string_view path = file;
  const auto name = path.substr(path.find_last_of('/') + 1);
  std::ostringstream text;
  text << "broken invariant: " << condition << " (" << name << ":" << line << ")";
  throw InternalError(text.str());
}

}  // namespace magi
