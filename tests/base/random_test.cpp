// SPDX-License-Identifier: Apache-2.0
#include "base/random.hpp"

#include <gtest/gtest.h>

namespace magi {
namespace {

TEST(RandomStream, IsTheSameEverywhere) {
  RandomStream random(0);
  EXPECT_EQ(random(), 0xe220a8397b1dcdafu);  // the first number that its authors give for seed 0
  EXPECT_EQ(random(), 0x6e789e6aa1b965f4u);
}

TEST(RandomStream, BetweenKeepsItsBounds) {
  RandomStream random(3);
  bool is_seen[3] = {false, false, false};
  for (int i = 0; i < 100; ++i) {
    const std::int32_t value = random.between(-1, 1);
    ASSERT_GE(value, -1);
    ASSERT_LE(value, 1);
    is_seen[value + 1] = true;
  }
  EXPECT_TRUE(is_seen[0] && is_seen[1] && is_seen[2]);
  EXPECT_EQ(random.between(7, 7), 7);
}

}  // namespace
}  // namespace magi
