// SPDX-License-Identifier: Apache-2.0
#include "base/lse_merge.hpp"

#include <gtest/gtest.h>

#include <tuple>

namespace magi {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(MergeLse, WeighsByTheShareOfEach) {
  const LseWeights<double> even = merge_lse(1.0, 1.0);
  EXPECT_DOUBLE_EQ(even.lse, 1.0 + std::log(2.0));
  EXPECT_DOUBLE_EQ(even.own, 0.5);
  EXPECT_DOUBLE_EQ(even.partial, 0.5);
  const LseWeights<float> uneven = merge_lse(std::log(3.0F), 0.0F);
  EXPECT_FLOAT_EQ(uneven.lse, std::log(4.0F));
  EXPECT_FLOAT_EQ(uneven.own, 0.75F);
  EXPECT_FLOAT_EQ(uneven.partial, 0.25F);
}

TEST(MergeLse, RowsWithoutKeysWeighNothing) {
  const LseWeights<double> none = merge_lse(-kInfinity, -kInfinity);
  EXPECT_EQ(none.lse, -kInfinity);
  EXPECT_EQ(none.own + none.partial, 0.0);
  const LseWeights<double> own = merge_lse(2.0, -kInfinity);
  EXPECT_EQ(std::tuple(own.lse, own.own, own.partial), std::tuple(2.0, 1.0, 0.0));
  const LseWeights<double> partial = merge_lse(-kInfinity, 2.0);
  EXPECT_EQ(std::tuple(partial.lse, partial.own, partial.partial), std::tuple(2.0, 0.0, 1.0));
}

TEST(MergeLse, ASinkThatTakesAllTakesAll) {
  const LseWeights<double> own = merge_lse(kInfinity, 5.0);
  EXPECT_EQ(std::tuple(own.lse, own.own, own.partial), std::tuple(kInfinity, 1.0, 0.0));
  const LseWeights<double> partial = merge_lse(5.0, kInfinity);
  EXPECT_EQ(std::tuple(partial.lse, partial.own, partial.partial), std::tuple(kInfinity, 0.0, 1.0));
}

TEST(MergeLse, WhatIsNoNumberStaysNone) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isnan(merge_lse(nan, 1.0).lse));
  EXPECT_TRUE(std::isnan(merge_lse(1.0, nan).lse));
}

}  // namespace
}  // namespace magi
