// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace magi {

enum class LogLevel : std::int32_t { Error = 0, Warn = 1, Info = 2, Debug = 3 };

using LogSink = std::function<void(LogLevel level, std::string_view module, std::string_view text)>;

/// Sends a line to the sink if `level` passes the threshold. Never on a hot path.
void log(LogLevel level, std::string_view module, std::string_view text);

/// Replaces the sink (default: stderr) and the threshold (default: MAGI_LOG_LEVEL, else warn).
void set_log_sink(LogSink sink, LogLevel threshold);

}  // namespace magi
