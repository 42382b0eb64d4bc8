// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"

#include <gtest/gtest.h>

#include <string>

namespace magi {
namespace {

TEST(Log, TheSinkGetsWhatPassesTheThreshold) {
  std::string seen;
  set_log_sink(
      [&](LogLevel level, std::string_view module, std::string_view text) {
        seen += std::to_string(static_cast<int>(level)) + " " + std::string(module) + ": " +
                std::string(text) + "\n";
      },
      LogLevel::Info);
  log(LogLevel::Error, "comm", "a rank died");
  log(LogLevel::Info, "plan", "made");
  log(LogLevel::Debug, "plan", "in detail");
  EXPECT_EQ(seen, "0 comm: a rank died\n2 plan: made\n");
  set_log_sink(nullptr, LogLevel::Warn);
  log(LogLevel::Error, "comm", "nobody listens");
}

}  // namespace
}  // namespace magi
