// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/schedule_policy.hpp"

#include <gtest/gtest.h>

namespace magi::test {
namespace {

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
