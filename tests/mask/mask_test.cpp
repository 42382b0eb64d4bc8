// SPDX-License-Identifier: Apache-2.0
#include "magi/mask.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "magi/error.hpp"
#include "support/random_mask.hpp"
#include "support/random_streams.hpp"
#include "support/refusal.hpp"

namespace magi::testing {
namespace {

std::string message_of(const Mask& mask) {
  return refusal_of([&] { validate(mask); });
}

TEST(MaskValidate, NamesSliceFieldValueAndAllowedValues) {
  const BandSlice good{0, 4, 0, 6};
  EXPECT_EQ(message_of({4, 6, {good}}), "accepted");
  EXPECT_EQ(message_of({4, 6, {good, {0, 5, 0, 6}}}), "slices[1].q1 is 5; allowed: 0 to 4");
  EXPECT_EQ(message_of({4, 6, {{2, 1, 0, 6}}}), "slices[0].q1 is 1; allowed: 2 to 4");
  EXPECT_EQ(message_of({4, 6, {{-1, 1, 0, 6}}}), "slices[0].q0 is -1; allowed: 0 to 4");
  EXPECT_EQ(message_of({4, 6, {{0, 1, 7, 7}}}), "slices[0].k0 is 7; allowed: 0 to 6");
  EXPECT_EQ(message_of({4, 6, {{0, 1, 3, 2}}}), "slices[0].k1 is 2; allowed: 3 to 6");
  EXPECT_EQ(message_of({4, 6, {{0, 1, 0, 2, -kBandInfinity - 1, 0}}}),
            "slices[0].d_min is -1073741825; allowed: -1073741824 to 1073741824");
  EXPECT_EQ(message_of({4, 6, {{0, 1, 0, 2, 0, kBandInfinity + 1}}}),
            "slices[0].d_max is 1073741825; allowed: 0 to 1073741824");
  EXPECT_EQ(message_of({4, 6, {{0, 4, 0, 6, 3, 2}}}),
            "slices[0].d_max is 2; allowed: 3 to 1073741824");
  EXPECT_EQ(message_of({-1, 6, {}}), "rows_q is -1; allowed: 0 to 1073741823");
  EXPECT_EQ(message_of({4, kBandInfinity, {}}), "rows_k is 1073741824; allowed: 0 to 1073741823");
}

TEST(MaskValidate, EmptySlicesAreValid) {
  EXPECT_EQ(message_of({0, 0, {}}), "accepted");
  EXPECT_EQ(message_of({4, 6, {BandSlice{}, {4, 4, 6, 6}, {0, 4, 0, 6, 6, 7}}}), "accepted");
  // A type of MagiAttention without a visible pair is such a slice, and comes back from text.
  const Mask typed{4, 2, {band_slice({0, 4}, {0, 2}, MaskType::BidirectionalCausal)}};
  EXPECT_EQ(message_of(typed), "accepted");
}

TEST(MaskArea, CountsMultiplicities) {
  EXPECT_EQ(area(Mask{4, 4, {{0, 4, 0, 4}, {0, 2, 0, 2}}}), 20);
  EXPECT_EQ(area(Mask{4, 4, {}}), 0);
}

TEST(MaskArea, ASumBeyondInt64IsRefused) {
  Mask mask{kMaxRows, kMaxRows, {}};
  mask.slices.assign(8, BandSlice{0, kMaxRows, 0, kMaxRows});
  EXPECT_EQ(area(mask), 8 * std::int64_t{kMaxRows} * kMaxRows);
  mask.slices.assign(9, BandSlice{0, kMaxRows, 0, kMaxRows});
  EXPECT_THROW(area(mask), InvalidArgument);
}

TEST(MaskExpand, EqualsTheDefinitionOnRandomMasks) {
  for (RandomStream& random : RandomStreams(400)) {
    const Mask mask = random_mask(random, {.min_rows = 0, .max_rows_q = 40, .max_rows_k = 40});
    SCOPED_TRACE(describe(mask));
    const std::vector<std::uint16_t> counts = expand(mask);
    const std::vector<int> expected = dense_counts(mask);
    ASSERT_EQ(std::vector<int>(counts.begin(), counts.end()), expected);
    EXPECT_EQ(area(mask), std::accumulate(expected.begin(), expected.end(), std::int64_t{0}));
  }
}

TEST(MaskExpand, RefusesInvalidAndHugeMasks) {
  EXPECT_THROW(expand(Mask{2, 2, {{0, 3, 0, 2}}}), InvalidArgument);
  EXPECT_THROW(expand(Mask{1 << 15, 1 << 15, {}}), InvalidArgument);
}

TEST(RandomMasks, AreValidAndTheSameForTheSameSeed) {
  RandomStream first(41);
  RandomStream second(41);
  for (int n = 0; n < 300; ++n) {
    const Mask mask = random_mask(first);
    EXPECT_NO_THROW(validate(mask));
    EXPECT_EQ(random_mask(second), mask);
  }
}

TEST(MaskReach, IsThatOfTheFarthestPair) {
  for (RandomStream& random : RandomStreams(200)) {
    const Mask mask = random_mask(random);
    const auto counts = expand(mask);
    Reach farthest;
    for (std::int32_t q = 0; q < mask.rows_q; ++q) {
      for (std::int32_t k = 0; k < mask.rows_k; ++k) {
        if (counts[static_cast<std::size_t>(q * mask.rows_k + k)] == 0) continue;
        farthest.before = std::max(farthest.before, q - k);
        farthest.after = std::max(farthest.after, k - q);
      }
    }
    EXPECT_EQ(reach(mask), farthest) << describe(mask);
  }
}

}  // namespace
}  // namespace magi::testing
