// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace magi {
namespace {

void log_text(LogLevel level, std::string_view module, std::string_view text) {
  log(level, module, [&] { return text; });
}

/// Sinks of this test end with it.
class Log : public ::testing::Test {
 protected:
  ~Log() override { set_log_sink(nullptr, LogLevel::Warn); }
  void keep(LogLevel threshold) {
    set_log_sink(
        [this](LogLevel level, std::string_view module, std::string_view text) {
          seen_ += std::to_string(static_cast<int>(level)) + " " + std::string(module) + ": " +
                   std::string(text) + "\n";
        },
        threshold);
  }
  std::string seen_;
};

TEST_F(Log, TheSinkGetsWhatPassesTheThreshold) {
  keep(LogLevel::Info);
  log_text(LogLevel::Error, "comm", "a rank died");
  log_text(LogLevel::Info, "plan", "made");
  log_text(LogLevel::Debug, "plan", "in detail");
  EXPECT_EQ(seen_, "0 comm: a rank died\n2 plan: made\n");
  set_log_sink(nullptr, LogLevel::Warn);
  log_text(LogLevel::Error, "comm", "nobody listens");
  EXPECT_EQ(seen_, "0 comm: a rank died\n2 plan: made\n");
}

TEST_F(Log, NoTextIsMadeOfALineThatIsNotWanted) {
  keep(LogLevel::Warn);
  bool is_made = false;
  const auto make_text = [&] {
    is_made = true;
    return "a text";
  };
  log(LogLevel::Info, "plan", make_text);
  EXPECT_FALSE(is_made);
  log(LogLevel::Warn, "plan", make_text);
  EXPECT_TRUE(is_made);
}

TEST_F(Log, ASinkMayLogAndSetSinks) {
  set_log_sink(
      [this](LogLevel, std::string_view, std::string_view) {
        keep(LogLevel::Info);
        log_text(LogLevel::Info, "log", "from within");
      },
      LogLevel::Info);
  log_text(LogLevel::Info, "log", "the first");
  log_text(LogLevel::Info, "log", "the second");
  EXPECT_EQ(seen_, "2 log: from within\n2 log: the second\n");
}

TEST_F(Log, WhatASinkOrATextThrowsEndsThere) {
  set_log_sink([](auto...) { throw std::runtime_error("no space left"); }, LogLevel::Info);
  EXPECT_NO_THROW(log_text(LogLevel::Error, "comm", "a rank died"));
  keep(LogLevel::Info);
  log(LogLevel::Info, "plan", []() -> std::string { throw std::bad_alloc(); });
  EXPECT_EQ(seen_, "");
}

/// Runs in a process of its own, whose log has not been used before.
class LogDeathTest : public ::testing::Test {
 protected:
  LogDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  [[noreturn]] static void log_with_level(const char* name) {
    name != nullptr ? setenv("MAGI_LOG_LEVEL", name, 1) : unsetenv("MAGI_LOG_LEVEL");
    log_text(LogLevel::Error, "comm", "an error");
    log_text(LogLevel::Warn, "comm", "a warning");
    log_text(LogLevel::Info, "comm", "news");
    std::exit(0);
  }
};

TEST_F(LogDeathTest, NothingIsPrintedUnlessAskedFor) {
  EXPECT_EXIT(log_with_level(nullptr), ::testing::ExitedWithCode(0), "^$");
  EXPECT_EXIT(log_with_level("off"), ::testing::ExitedWithCode(0), "^$");
}

TEST_F(LogDeathTest, TheEnvironmentChoosesWhatGoesToStderr) {
  const ::testing::ExitedWithCode is_well(0);
  EXPECT_EXIT(log_with_level("warn"), is_well,
              "^magi error of comm: an error\nmagi warn of comm: a warning\n$");
  EXPECT_EXIT(log_with_level("error"), is_well, "^magi error of comm: an error\n$");
  EXPECT_EXIT(log_with_level("info"), is_well,
              "^magi error of comm: an error\nmagi warn of comm: a warning\nmagi info of comm: "
              "news\n$");
}

TEST_F(LogDeathTest, ALevelThatIsNoneIsNamed) {
  EXPECT_EXIT(
      log_with_level("loud"), ::testing::ExitedWithCode(0),
      "^magi warn of log: MAGI_LOG_LEVEL is loud, which is taken as warn; allowed: off, "
      "error, warn, info, debug\nmagi error of comm: an error\nmagi warn of comm: a warning\n$");
}

}  // namespace
}  // namespace magi
