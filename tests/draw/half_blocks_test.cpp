// SPDX-License-Identifier: Apache-2.0
#include "draw/half_blocks.hpp"

#include <gtest/gtest.h>

namespace magi::draw {
namespace {

const std::vector<std::string> kColours{"#ff0000", "#00007f"};
constexpr TerminalStyle kBlocks{};
constexpr TerminalStyle kAscii{.is_ascii = true};
constexpr TerminalStyle kColour{.has_colour = true};

/// All pairs of an upper and a lower pixel, of two colours.
HalfBlocks all_pairs() {
  HalfBlocks pixels(9, 2);
  for (std::int32_t column = 0; column < 9; ++column) {
    if (column % 3 > 0) pixels.paint(0, column, column + 1, column % 3 - 1);
    if (column / 3 > 0) pixels.paint(1, column, column + 1, column / 3 - 1);
  }
  return pixels;
}

TEST(HalfBlocks, TwoPixelsAreOneCharacter) {
  EXPECT_EQ(all_pairs().line(0, kColours, kBlocks), "│ ▀▀▄██▄██│");
  EXPECT_EQ(all_pairs().line(0, kColours, kAscii), "| ''.##.##|");
}

TEST(HalfBlocks, ColoursAreThoseOfInkAndGround) {
  const std::string red = "\x1b[0;38;2;255;0;0m", blue = "\x1b[0;38;2;0;0;127m";
  const std::string none = "\x1b[0m";
  EXPECT_EQ(all_pairs().line(0, kColours, kColour),
            "│ " + red + "▀" + blue + "▀" + red + "▄█" + "\x1b[0;38;2;0;0;127;48;2;255;0;0m▀" +
                blue + "▄" + "\x1b[0;38;2;255;0;0;48;2;0;0;127m▀" + blue + "█" + none + "│");
  EXPECT_EQ(coloured("x", "#ff0000", kColour), red + "x" + none);
  EXPECT_EQ(coloured("x", "#ff0000", kBlocks), "x");
}

TEST(HalfBlocks, WhatIsPaintedStays) {
  HalfBlocks pixels(3, 3);
  EXPECT_EQ(pixels.num_lines(), 2);
  pixels.paint(2, 0, 2, 0);
  pixels.paint(2, 1, 3, 1);
  EXPECT_EQ(pixels.line(1, kColours, {.has_colour = true}),
            "│\x1b[0;38;2;255;0;0m▀▀\x1b[0;38;2;0;0;127m▀\x1b[0m│");
  EXPECT_EQ(pixels.line(0, kColours, kBlocks), "│   │");
  EXPECT_EQ(pixels.border(true, kBlocks), "┌───┐");
  EXPECT_EQ(pixels.border(false, kAscii), "+---+");
}

TEST(HalfBlocks, LabelsThatWouldTouchAreLeftOut) {
  EXPECT_EQ(axis_line({{0, "0"}, {10, "10"}, {20, "20"}}, 20), "0        10       20");
  EXPECT_EQ(axis_line({{0, "0"}, {17, "170"}, {20, "200"}}, 20), "0                200");
  EXPECT_EQ(axis_line({{0, "long"}, {3, "3"}, {20, "200"}}, 20), "long             200");
  EXPECT_EQ(axis_line({}, 4), "    ");
  EXPECT_EQ(right_aligned("ab", 4), "  ab");
  EXPECT_EQ(left_aligned("ab", 4), "ab  ");
}

}  // namespace
}  // namespace magi::draw
