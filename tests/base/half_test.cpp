// SPDX-License-Identifier: Apache-2.0
#include "base/half.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace magi {
namespace {

/// Every value of a 16-bit type, by its functions from and to float.
template <typename FromFloat, typename ToFloat>
void check_round_trips(FromFloat from_float, ToFloat to_float) {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const float value = to_float(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(to_float(from_float(value))));
    } else {
      EXPECT_EQ(from_float(value), bits);
    }
  }
}

TEST(Half, EveryFloat16SurvivesARoundTrip) {
  check_round_trips(float_to_float16, float16_to_float);
}

TEST(Half, EveryBfloat16SurvivesARoundTrip) {
  check_round_trips(float_to_bfloat16, bfloat16_to_float);
}

TEST(Half, TiesGoToEven) {
  EXPECT_EQ(float_to_bfloat16(1.0f + 0x1p-8f), 0x3f80);
  EXPECT_EQ(float_to_bfloat16(1.0f + 3 * 0x1p-8f), 0x3f82);
  EXPECT_EQ(float_to_float16(1.0f + 0x1p-11f), 0x3c00);
  EXPECT_EQ(float_to_float16(1.0f + 3 * 0x1p-11f), 0x3c02);
  EXPECT_EQ(float_to_float16(0x1p-25f), 0x0000);
  EXPECT_EQ(float_to_float16(3 * 0x1p-25f), 0x0002);
}

TEST(Half, OverflowIsInfinity) {
  EXPECT_EQ(float_to_float16(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_float16(65519.0f), 0x7bff);
  EXPECT_EQ(float_to_float16(-std::numeric_limits<float>::infinity()), 0xfc00);
  EXPECT_EQ(float_to_bfloat16(std::numeric_limits<float>::max()), 0x7f80);
}

}  // namespace
}  // namespace magi
