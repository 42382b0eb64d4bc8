// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace magi {

enum class LogLevel : std::int32_t { Error = 0, Warn = 1, Info = 2, Debug = 3 };

/// Takes one line; `module` is the part of the library that tells it. It may be called from any
/// thread, from several at once, and may log and set sinks. What it throws ends there.
using LogSink = std::function<void(LogLevel level, std::string_view module, std::string_view text)>;

/// Replaces the process's sink (default: stderr; empty: silence) and the threshold (default:
/// MAGI_LOG_LEVEL, else none passes): lines up to it are told. Threads that are giving a line to
/// the former sink go on in it. docs/reliability.md names all lines.
void set_log_sink(LogSink sink, LogLevel threshold);

}  // namespace magi
