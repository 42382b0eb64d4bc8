// SPDX-License-Identifier: Apache-2.0
#include "draw/numbers.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace magi::draw {
namespace {

TEST(Numbers, DecimalsDropTrailingZeros) {
  EXPECT_EQ(decimal(1.0), "1");
  EXPECT_EQ(decimal(1.5), "1.5");
  EXPECT_EQ(decimal(1.256), "1.26");
  EXPECT_EQ(decimal(-0.001), "0");
  EXPECT_EQ(decimal(100.0, 0), "100");
  EXPECT_EQ(decimal(1e300, 0).size(), 301u);
}

TEST(Numbers, GroupsOfThree) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(-1234567), "-1,234,567");
  EXPECT_EQ(grouped(-100), "-100");
  EXPECT_EQ(grouped(std::numeric_limits<std::int64_t>::max()), "9,223,372,036,854,775,807");
}

TEST(Numbers, BytesAndSecondsCarryUnits) {
  EXPECT_EQ(bytes_text(0), "0");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(std::int64_t{24} << 20), "24 MiB");
  EXPECT_EQ(bytes_text(std::numeric_limits<std::int64_t>::max()), "8 EiB");
  EXPECT_EQ(seconds_text(0.0), "0 s");
  EXPECT_EQ(seconds_text(1.25e-5), "12.5 us");
  EXPECT_EQ(seconds_text(2.0), "2 s");
  EXPECT_EQ(seconds_text(0.0009999), "1 ms");
}

TEST(Numbers, SharesOfNothingAreZero) {
  EXPECT_EQ(percent_text(1, 3), "33.3 %");
  EXPECT_EQ(percent_text(0, 0), "0 %");
}

TEST(Numbers, TicksLeaveRoomForTheLimit) {
  EXPECT_EQ(ticks(8192, 5), (std::vector<double>{0, 2000, 4000, 6000}));
  EXPECT_EQ(ticks(0, 5), (std::vector<double>{0}));
  EXPECT_EQ(ticks(1, 2), (std::vector<double>{0, 0.5}));
  EXPECT_EQ(ticks(1, 5, 1.0), (std::vector<double>{0}));
  EXPECT_EQ(ticks(3, 5, 1.0), (std::vector<double>{0, 1, 2}));
  EXPECT_EQ(ticks(51000, 5, 1.0, 49990), (std::vector<double>{49990, 50500}));
  EXPECT_EQ(ticks(6100, 5, 1.0, 4200), (std::vector<double>{4200, 4500, 5000, 5500}));
}

}  // namespace
}  // namespace magi::draw
