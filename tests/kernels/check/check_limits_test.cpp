// SPDX-License-Identifier: Apache-2.0
#include "kernels/check/check_limits.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "support/refusal.hpp"

namespace magi::test {
namespace {

using testing::refusal_of;

TEST(CheckLimits, HeadDimsAreNamedWithTheirRange) {
  const HeadDims dims{.min = 8, .max = 128, .multiple = 8};
  EXPECT_EQ(refusal_of([&] { check_head_dim(dims, "d", 128); }), "accepted");
  EXPECT_EQ(refusal_of([&] { check_head_dim(dims, "d", 136, "on a GPU "); }),
            "d is 136; allowed: on a GPU multiples of 8 from 8 to 128");
  EXPECT_EQ(refusal_of([&] { check_head_dim(dims, "d", 12); }),
            "d is 12; allowed: multiples of 8 from 8 to 128");
  EXPECT_EQ(refusal_of([&] { check_head_dim({.min = 1, .max = 9}, "d", 0); }),
            "d is 0; allowed: 1 to 9");
}

TEST(CheckLimits, ScalesAreFiniteAndWithinTheLimits) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  AttentionLimits limits{.has_softcap = true};
  DType sums = DType::Float32;
  const auto refusal = [&](AttentionParams params) {
    return refusal_of([&] { check_options(limits, params, sums, {}); });
  };
  EXPECT_EQ(refusal({.softmax_scale = 0.5, .softcap = 30.0}), "accepted");
  for (const double bad : {kNan, kInfinity, 2e30, 9e-31, -0.5}) {
    EXPECT_NE(refusal({.softmax_scale = bad}), "accepted");
    EXPECT_NE(refusal({.softcap = bad}), "accepted");
  }
  EXPECT_EQ(refusal({.softmax_scale = 1e-30}), "accepted");
  EXPECT_EQ(refusal({.softcap = 1e30}), "accepted");
  // In float32 one quotient would be 0, which stands for no softcap, and the other infinite.
  EXPECT_EQ(refusal({.softmax_scale = 1e-20, .softcap = 1e30}),
            "softmax_scale / softcap is 1e-50; allowed: 1e-30 to 1e+30");
  EXPECT_EQ(refusal({.softmax_scale = -0.5}),
            "softmax_scale is -0.5; allowed: 0 (the default) or 1e-30 to 1e+30");
  limits.has_any_scale = true;
  EXPECT_EQ(refusal({.softmax_scale = -0.5, .softcap = 30.0}), "accepted");
  EXPECT_EQ(refusal({.softmax_scale = -2e-40}),
            "softmax_scale is -2e-40; allowed: 0 (the default) or a magnitude of 1e-30 to 1e+30");
  sums = DType::Float64;
  EXPECT_EQ(refusal({.softmax_scale = -2e-40, .softcap = 2e30}), "accepted");
  for (const double bad : {kNan, kInfinity, 1e-320}) {
    EXPECT_EQ(refusal({.softmax_scale = bad}).substr(0, 17), "softmax_scale is ");
    EXPECT_EQ(refusal({.softcap = bad}).substr(0, 11), "softcap is ");
  }
}

TEST(CheckLimits, LayoutsAreCheckedByTheUnitOfBytes) {
  const AttentionLimits limits{.stride_bytes = 16};
  alignas(16) static std::byte memory[64];
  TensorView tensor{memory, DType::BFloat16, kCpuDevice, 3, {2, 2, 8}, {16, 8, 1}};
  const auto refusal = [&] { return refusal_of([&] { check_layout(limits, "q", tensor); }); };
  EXPECT_EQ(refusal(), "accepted");
  tensor.stride[0] = 17;
  EXPECT_EQ(refusal(),
            "q.stride[0] is 17; allowed: multiples of 16 bytes from 0 to below 2^40 bytes");
  tensor.shape[0] = 1;
  EXPECT_EQ(refusal(), "accepted") << "one row has no neighbour";
}

}  // namespace
}  // namespace magi::test
