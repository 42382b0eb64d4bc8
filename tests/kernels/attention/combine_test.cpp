// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/combine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/half.hpp"

namespace magi::test {
namespace {

TEST(Combine, MergedRowsWeighByTheirSums) {
  const MergedRow row = merged_row(0.0, 0.0);
  EXPECT_DOUBLE_EQ(row.part_weight, 0.5);
  EXPECT_DOUBLE_EQ(row.sum_weight, 0.5);
  EXPECT_DOUBLE_EQ(row.lse, std::log(2.0));
  const MergedRow far = merged_row(1000.0, -1000.0);
  EXPECT_DOUBLE_EQ(far.part_weight, 1.0);
  EXPECT_DOUBLE_EQ(far.sum_weight, 0.0);
  EXPECT_DOUBLE_EQ(far.lse, 1000.0);
}

TEST(Combine, RowsWithoutKeysChangeNothing) {
  const MergedRow blind = merged_row(-INFINITY, 2.0);
  EXPECT_EQ(blind.part_weight, 0.0);
  EXPECT_EQ(blind.sum_weight, 1.0);
  EXPECT_EQ(blind.lse, 2.0);
  const MergedRow first = merged_row(2.0, -INFINITY);
  EXPECT_EQ(first.part_weight, 1.0);
  EXPECT_EQ(first.sum_weight, 0.0);
  EXPECT_EQ(merged_row(-INFINITY, -INFINITY).lse, -INFINITY);
}

TEST(Combine, ASinkThatTakesAllWeightKeepsIt) {
  const MergedRow late = merged_row(INFINITY, 2.0);
  EXPECT_EQ(late.part_weight, 1.0);
  EXPECT_EQ(late.sum_weight, 0.0);
  EXPECT_EQ(late.lse, INFINITY);
  const MergedRow early = merged_row(2.0, INFINITY);
  EXPECT_EQ(early.part_weight, 0.0);
  EXPECT_EQ(early.sum_weight, 1.0);
  EXPECT_EQ(early.lse, INFINITY);
  EXPECT_EQ(merged_row(INFINITY, INFINITY).lse, INFINITY);
  EXPECT_EQ(merged_row(INFINITY, -INFINITY).lse, INFINITY);
}

TEST(Combine, WritesAddsAndTakesTheLargerAcrossTypesAndStrides) {
  HostTensor<float> source{2, 3, 4};
  for (std::size_t i = 0; i < 24; ++i) source.elements()[i] = static_cast<float>(i) - 12.0f;
  HostTensor<std::uint16_t> wide{2, 5, 4};  // bfloat16
  std::ranges::fill(wide.elements(), float_to_bfloat16(2.0f));
  const TensorView target = TensorView(wide).slice(1, 1, 4);
  const auto value = [&](std::size_t row, std::size_t head, std::size_t d) {
    return bfloat16_to_float(wide.elements()[(row * 5 + head + 1) * 4 + d]);
  };
  combine(source, target, Combination::Max, nullptr);
  EXPECT_EQ(value(0, 0, 0), 2.0f);
  EXPECT_EQ(value(1, 2, 3), 11.0f);
  combine(source, target, Combination::Add, nullptr);
  EXPECT_EQ(value(0, 0, 0), -10.0f);
  EXPECT_EQ(value(1, 2, 3), 22.0f);
  combine(source, target, Combination::Write, nullptr);
  EXPECT_EQ(value(0, 2, 1), -3.0f);
  EXPECT_EQ(bfloat16_to_float(wide.elements()[0]), 2.0f) << "outside the slice";
  EXPECT_EQ(bfloat16_to_float(wide.elements()[39]), 2.0f);
}

TEST(Combine, WritingOverNanLeavesNone) {
  HostTensor<float> source{3}, target{3};
  std::ranges::fill(target.elements(), NAN);
  combine(source, target, Combination::Write, nullptr);
  for (const float value : target.elements()) EXPECT_EQ(value, 0.0f);
}

TEST(Combine, MergesRowsOfTwoParts) {
  HostTensor<double> part_out{2, 1, 2}, sum_out{2, 1, 2}, part_lse{2, 1}, sum_lse{2, 1};
  std::ranges::copy(std::array{1.0, 2.0, 7.0, 7.0}, part_out.elements().begin());
  std::ranges::copy(std::array{3.0, 6.0, 5.0, 5.0}, sum_out.elements().begin());
  std::ranges::copy(std::array<double, 2>{0.0, -INFINITY}, part_lse.elements().begin());
  std::ranges::copy(std::array{std::log(3.0), 1.5}, sum_lse.elements().begin());
  merge({part_out, part_lse}, {sum_out, sum_lse}, nullptr);
  EXPECT_DOUBLE_EQ(sum_out.elements()[0], 2.5);
  EXPECT_DOUBLE_EQ(sum_out.elements()[1], 5.0);
  EXPECT_DOUBLE_EQ(sum_lse.elements()[0], std::log(4.0));
  EXPECT_EQ(sum_out.elements()[2], 5.0);
  EXPECT_EQ(sum_lse.elements()[1], 1.5);
}

}  // namespace
}  // namespace magi::test
