// SPDX-License-Identifier: Apache-2.0
#include "common/terminal.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>

namespace magi::cli {
namespace {

constexpr std::int32_t kFewest = 40, kMost = 400, kUsual = 80;

/// "en_GB.UTF-8", "C.utf8" and the like.
bool names_utf8(std::string locale) {
  std::ranges::transform(locale, locale.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
}

std::int32_t columns_of(const std::string& text) {
  std::int32_t columns = 0;
  std::from_chars(text.data(), text.data() + text.size(), columns);
  return columns;
}

}  // namespace

Output standard_output() {
  Output output{.is_terminal = ::isatty(STDOUT_FILENO) == 1, .columns = 0};
  winsize size{};
  if (output.is_terminal && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) {
    output.columns = size.ws_col;
  }
  return output;
}

draw::TerminalStyle terminal_style(
    const Output& output,
    const std::function<std::optional<std::string>(const char* name)>& lookup) {
  const auto value = [&](const char* name) { return lookup(name).value_or(""); };
  std::int32_t columns = output.columns > 0 ? output.columns : columns_of(value("COLUMNS"));
  if (columns <= 0) columns = kUsual;
  std::string locale;
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    if (locale.empty()) locale = value(name);
  }
  return {.width = std::clamp(columns, kFewest, kMost),
          .is_ascii = !names_utf8(locale),
          .has_colour = output.is_terminal && value("NO_COLOR").empty() && value("TERM") != "dumb"};
}

}  // namespace magi::cli
