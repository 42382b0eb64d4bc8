// SPDX-License-Identifier: Apache-2.0
#include "common/terminal.hpp"

#include <gtest/gtest.h>

#include <map>

namespace magi::cli {
namespace {

draw::TerminalStyle style(const Output& output, const std::map<std::string, std::string>& set) {
  return terminal_style(output, [&](const char* name) -> std::optional<std::string> {
    const auto found = set.find(name);
    return found == set.end() ? std::nullopt : std::optional(found->second);
  });
}

constexpr Output kPipe{};
constexpr Output kTerminal{.is_terminal = true, .columns = 120};

TEST(Terminal, WidthIsThatOfTheTerminal) {
  EXPECT_EQ(style(kTerminal, {{"COLUMNS", "90"}}).width, 120);
  EXPECT_EQ(style(kPipe, {{"COLUMNS", "90"}}).width, 90);
  EXPECT_EQ(style(kPipe, {}).width, 80);
  EXPECT_EQ(style(kPipe, {{"COLUMNS", "wide"}}).width, 80);
  EXPECT_EQ(style(kPipe, {{"COLUMNS", "7"}}).width, 40);
  EXPECT_EQ(style({.is_terminal = true, .columns = 4000}, {}).width, 400);
}

TEST(Terminal, ColoursAreForTerminalsThatWantThem) {
  EXPECT_TRUE(style(kTerminal, {{"TERM", "xterm"}}).has_colour);
  EXPECT_FALSE(style(kPipe, {{"TERM", "xterm"}}).has_colour);
  EXPECT_FALSE(style(kTerminal, {{"NO_COLOR", "1"}}).has_colour);
  EXPECT_TRUE(style(kTerminal, {{"NO_COLOR", ""}}).has_colour);
  EXPECT_FALSE(style(kTerminal, {{"TERM", "dumb"}}).has_colour);
}

TEST(Terminal, HalfBlocksNeedALocaleOfUtf8) {
  EXPECT_TRUE(style(kTerminal, {}).is_ascii);
  EXPECT_TRUE(style(kTerminal, {{"LANG", "C"}}).is_ascii);
  EXPECT_FALSE(style(kTerminal, {{"LANG", "en_GB.UTF-8"}}).is_ascii);
  EXPECT_FALSE(style(kTerminal, {{"LC_CTYPE", "C.utf8"}, {"LANG", "C"}}).is_ascii);
  EXPECT_TRUE(style(kTerminal, {{"LC_ALL", "C"}, {"LANG", "en_GB.UTF-8"}}).is_ascii);
}

}  // namespace
}  // namespace magi::cli
