// SPDX-License-Identifier: Apache-2.0
#include "reference/error_rule.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace magi::reference {
namespace {

using Values = std::vector<double>;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(ErrorRule, EqualInfinitiesAreNoError) {
  EXPECT_EQ(max_error(Values{-kInfinity, 1}, Values{-kInfinity, 1}), 0);
}

TEST(ErrorRule, NanAndMissingValuesNeverPass) {
  EXPECT_FALSE(judge_exact(Values{kNan}, Values{1}, DType::Float32).holds());
  EXPECT_FALSE(judge_exact(Values{0}, Values{-kInfinity}, DType::Float32).holds());
  EXPECT_FALSE(judge_exact(Values{kInfinity}, Values{-kInfinity}, DType::Float32).holds());
  EXPECT_FALSE(judge_exact(Values{}, Values{1}, DType::Float32).holds());
  EXPECT_FALSE(judge_rounded(Values{kNan}, Values{1}, Values{1}, DType::BFloat16).holds());
}

TEST(ErrorRule, RoundedResultsMayBeTwiceAsFarOffPlusOneUlp) {
  const Values truth{4.0}, plain{4.5};
  const double limit = 2 * 0.5 + 0x1p-7 * 4;
  EXPECT_TRUE(judge_rounded(Values{4 + limit}, truth, plain, DType::BFloat16).holds());
  EXPECT_FALSE(judge_rounded(Values{4 + limit + 1e-9}, truth, plain, DType::BFloat16).holds());
}

TEST(ErrorRule, ExactResultsScaleWithTheLargestValue) {
  EXPECT_TRUE(judge_exact(Values{1000.001}, Values{1000}, DType::Float32).holds());
  EXPECT_FALSE(judge_exact(Values{1.001}, Values{1}, DType::Float32).holds());
}

}  // namespace
}  // namespace magi::reference
