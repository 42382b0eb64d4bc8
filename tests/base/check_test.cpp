// SPDX-License-Identifier: Apache-2.0
#include "base/check.hpp"

#include <gtest/gtest.h>

#include <string>

namespace magi {
namespace {

TEST(Check, PrintableTextIsOneShortLineOfAscii) {
  EXPECT_EQ(printable("a \"name\" ~", 40), "a \"name\" ~");
  EXPECT_EQ(printable(std::string("a\0b\n\x1b\x7f", 6), 40), R"(a\x00b\x0a\x1b\x7f)");
  EXPECT_EQ(printable("\xc3\x28\xff", 40), R"(\xc3(\xff)");
  EXPECT_EQ(printable("", 40), "");
  EXPECT_EQ(printable("12345", 5), "12345");
  EXPECT_EQ(printable("123456", 5), "12345...");
  // A byte is shown whole or not at all.
  EXPECT_EQ(printable("12\n45", 5), "12...");
}

TEST(Check, RefusalsShowAnyTextInOneSentence) {
  const std::string name("aut\0\n", 5);
  const std::string expected = R"(name is aut\x00\x0a; allowed: auto)";
  EXPECT_EQ(std::string(invalid("name", name, "auto").what()), expected);
  EXPECT_EQ(std::string(invalid("name", std::string_view(name), "auto").what()), expected);
  EXPECT_EQ(std::string(invalid("name", "aut\n", "auto").what()),
            R"(name is aut\x0a; allowed: auto)");
  EXPECT_EQ(std::string(invalid("name", std::string(1000, 'x'), "auto").what()),
            "name is " + std::string(kLongestValue, 'x') + "...; allowed: auto");
}

TEST(Check, RefusalsShowNumbersAsTheyAre) {
  EXPECT_EQ(std::string(invalid("rows", -3, "0 or more").what()), "rows is -3; allowed: 0 or more");
  EXPECT_EQ(std::string(invalid("rate", 0.5, "1 or more").what()),
            "rate is 0.5; allowed: 1 or more");
}

}  // namespace
}  // namespace magi
