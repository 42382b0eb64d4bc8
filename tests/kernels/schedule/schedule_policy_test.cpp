// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/schedule_policy.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <iostream>
#include <sstream>
#include <string>

namespace magi::test {
namespace {

TEST(SchedulePolicyTest, PrintsEachConstantWithValueAndUnit) {
  const std::string text = describe({});
  std::cout << text;
  std::istringstream lines(text);
  std::size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    std::istringstream words(line);
    std::string name, equals, value, unit;
    words >> name >> equals >> value;
    std::getline(words >> std::ws, unit);
    EXPECT_EQ(equals, "=") << line;
    EXPECT_TRUE(value.find_first_not_of("0123456789/") == std::string::npos) << line;
    EXPECT_FALSE(unit.empty()) << line;
  }
  // Ratios are twice as large as the others; nothing but constants is in a policy.
  constexpr std::size_t kRatios = 17;
  EXPECT_EQ(sizeof(SchedulePolicy),
            kRatios * sizeof(Ratio) + (count - kRatios) * sizeof(std::int64_t));
}

TEST(SchedulePolicyTest, PrintsWhatIsChanged) {
  EXPECT_NE(describe({.uneven_tail = 7}).find("uneven_tail = 7 steps per item\n"),
            std::string::npos);
  EXPECT_NE(describe({.tail_step = {2, 3}}).find("tail_step = 2/3 of a step\n"), std::string::npos);
}

TEST(SchedulePolicyTest, RatiosAreExact) {
  constexpr Ratio kShare{3, 8};
  EXPECT_EQ(kShare.of(15), 5);
  EXPECT_FALSE(kShare.is_exceeded(3, 8));
  EXPECT_FALSE(kShare.is_undercut(3, 8));
  EXPECT_TRUE(kShare.is_exceeded(4, 8));
  EXPECT_TRUE(kShare.is_undercut(3, 9));
}

}  // namespace
}  // namespace magi::test
