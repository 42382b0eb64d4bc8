// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"

#include <iostream>
#include <mutex>
#include <utility>

#include "base/env.hpp"

namespace magi {
namespace {

LogLevel level_from_name(std::string_view name) {
  if (name == "error") return LogLevel::Error;
  if (name == "info") return LogLevel::Info;
  if (name == "debug") return LogLevel::Debug;
  return LogLevel::Warn;
}

/// The process's sink: the one piece of shared state of the library, behind its own lock.
struct Logger {
  std::mutex mutex;
  LogLevel threshold = level_from_name(log_level_env());
  LogSink sink = [](LogLevel, std::string_view module, std::string_view text) {
    std::cerr << "magi " << module << ": " << text << '\n';
  };
};

Logger& logger() {
  static Logger instance;
  return instance;
}

}  // namespace

void log(LogLevel level, std::string_view module, std::string_view text) {
  Logger& target = logger();
  const std::lock_guard lock(target.mutex);
  if (level <= target.threshold && target.sink) target.sink(level, module, text);
}

void set_log_sink(LogSink sink, LogLevel threshold) {
  Logger& target = logger();
  const std::lock_guard lock(target.mutex);
  target.sink = std::move(sink);
  target.threshold = threshold;
}

}  // namespace magi
