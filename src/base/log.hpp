// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "magi/log.hpp"

// What the library tells beside results and exceptions, a line at a time, where a program asks for
// it. An error that is thrown is not told here too; docs/reliability.md names all lines.
namespace magi {

/// Whether a line of this level is wanted: one word is read.
bool is_logged(LogLevel level);

/// Gives a line to the sink if `level` passes the threshold. No lock is held meanwhile: the sink
/// may log and set sinks.
void write_log_line(LogLevel level, std::string_view module, std::string_view text);

/// Does what write_log_line does with the text that make_text() gives, which is called for a line
/// that is wanted alone. What is thrown meanwhile ends here: a line that cannot be told ends no
/// work.
template <typename MakeText>
void log(LogLevel level, std::string_view module, const MakeText& make_text) noexcept {
  try {
    if (is_logged(level)) write_log_line(level, module, make_text());
  } catch (...) {
    // Nobody else could be told.
  }
}

}  // namespace magi
