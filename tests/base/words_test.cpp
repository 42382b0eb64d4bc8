// SPDX-License-Identifier: Apache-2.0
#include "base/words.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <limits>

namespace magi {
namespace {

TEST(Words, CountsANounOnceOrSeveralTimes) {
  EXPECT_EQ(counted(1, "slice"), "1 slice");
  EXPECT_EQ(counted(0, "slice"), "0 slices");
  EXPECT_EQ(counted(2, "slice"), "2 slices");
}

TEST(Words, ShowsSixteenHexadecimalDigits) {
  EXPECT_EQ(hex(0), "0x0000000000000000");
  EXPECT_EQ(hex(0x123456789abcdef), "0x0123456789abcdef");
  EXPECT_EQ(hex(std::numeric_limits<std::uint64_t>::max()), "0xffffffffffffffff");
}

TEST(Words, NamesAnElementOfAList) { EXPECT_EQ(element_name("types", 3), "types[3]"); }

TEST(Words, NamesAnErrorOfTheSystem) {
  EXPECT_EQ(system_text(ENOENT), "No such file or directory");
}

}  // namespace
}  // namespace magi
