// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "draw/pictures.hpp"

namespace magi::cli {

/// The system's answers about standard output.
struct Output {
  bool is_terminal = false;
  std::int32_t columns = 0;  ///< of the terminal; 0: not told
};
Output standard_output();

/// A style as wide as the terminal, else as COLUMNS, else 80, from 40 to 400 columns. Colours on a
/// terminal alone, and not where NO_COLOR is set or TERM is dumb. Half blocks where LC_ALL, else
/// LC_CTYPE, else LANG names UTF-8, and ASCII elsewhere.
draw::TerminalStyle terminal_style(
    const Output& output,
    const std::function<std::optional<std::string>(const char* name)>& lookup);

}  // namespace magi::cli
