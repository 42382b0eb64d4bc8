// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/check_args.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "support/refusal.hpp"

namespace magi::testing {
namespace {

/// No row is read: one element stands for all of them.
std::string message_of(std::int32_t rows, const std::vector<BandSlice>& slices) {
  float element = 0;
  TensorView tensor = contiguous_view(&element, DType::Float32, {rows, 1, 1});
  tensor.stride = {};
  TensorView lse = contiguous_view(&element, DType::Float32, {rows, 1});
  const ForwardArgs args{
      .q = tensor, .k = tensor, .v = tensor, .slices = slices, .out = tensor, .lse = lse};
  return refusal_of([&] { cpu::check_args(args); });
}

TEST(CpuArgs, SlicesLieWithinTheRows) {
  EXPECT_EQ(message_of(8, {{0, 8, 0, 8}}), "accepted");
  EXPECT_EQ(message_of(8, {{0, 8, 0, 9}}).substr(0, 12), "slices[0].k1");
  constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
  EXPECT_EQ(message_of(8, {{0, 8, 0, 8, kLeast}}).substr(0, 15), "slices[0].d_min");
}

TEST(CpuArgs, MorePairsThanAnInt64CountsAreRefused) {
  EXPECT_EQ(message_of(kMaxRows, std::vector<BandSlice>(9, {0, kMaxRows, 0, kMaxRows})),
            "area of the mask is more than 2^63 - 1 pairs; allowed: pairs that fit int64");
}

}  // namespace
}  // namespace magi::testing
