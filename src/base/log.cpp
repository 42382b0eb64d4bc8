// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"

#include <array>
#include <atomic>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/env.hpp"

namespace magi {
namespace {

constexpr std::array<std::string_view, 4> kLevelNames{"error", "warn", "info", "debug"};
constexpr auto kOff = static_cast<LogLevel>(-1);  // below all levels: no line passes

/// Writes in one piece, as threads and processes write beside each other.
void write_to_stderr(LogLevel level, std::string_view module, std::string_view text) {
  std::string line = "magi ";
  line += kLevelNames[static_cast<std::size_t>(level)];
  ((line += " of ") += module) += ": ";
  (line += text) += '\n';
  std::cerr << line;
}

LogLevel level_of_environment() {
  const std::string name = log_level_env();
  if (name == "off") return kOff;
  for (std::size_t level = 0; level < kLevelNames.size(); ++level) {
    if (name == kLevelNames[level]) return static_cast<LogLevel>(level);
  }
  write_to_stderr(LogLevel::Warn, "log",
                  "MAGI_LOG_LEVEL is " + name + ", which is taken as warn; allowed: off, error, " +
                      "warn, info, debug");
  return LogLevel::Warn;
}

/// The process's sink: the one piece of shared state of the library. The lock guards the pointer.
struct Logger {
  std::atomic<LogLevel> threshold = level_of_environment();
  std::mutex mutex;
  std::shared_ptr<const LogSink> sink = std::make_shared<const LogSink>(write_to_stderr);
};

Logger& logger() {
  static auto& instance = *new Logger;  // never destroyed: threads may log until the process ends
  return instance;
}

}  // namespace

bool is_logged(LogLevel level) {
  return level <= logger().threshold.load(std::memory_order_relaxed);
}

void write_log_line(LogLevel level, std::string_view module, std::string_view text) {
  Logger& target = logger();
  std::shared_ptr<const LogSink> sink;
  {
    const std::lock_guard lock(target.mutex);
    if (level <= target.threshold.load(std::memory_order_relaxed)) sink = target.sink;
  }
  if (sink != nullptr && *sink) (*sink)(level, module, text);
}

void set_log_sink(LogSink sink, LogLevel threshold) {
  auto shared = std::make_shared<const LogSink>(std::move(sink));
  Logger& target = logger();
  const std::lock_guard lock(target.mutex);
  target.sink.swap(shared);  // the former one ends after the lock
  target.threshold.store(threshold, std::memory_order_relaxed);
}

}  // namespace magi
