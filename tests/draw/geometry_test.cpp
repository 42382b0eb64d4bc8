// SPDX-License-Identifier: Apache-2.0
#include "draw/geometry.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "support/random_mask.hpp"
#include "support/random_streams.hpp"

namespace magi::draw {
namespace {

/// Area in cells, by the shoelace formula.
double polygon_area(const Polygon& polygon) {
  double twice = 0.0;
  for (std::size_t i = 0; i < polygon.size(); ++i) {
    const Point& a = polygon[i];
    const Point& b = polygon[(i + 1) % polygon.size()];
    twice += a.k * b.q - b.k * a.q;
  }
  return std::abs(twice) / 2.0;
}

TEST(Geometry, ExactOutlinesHaveTheAreaOfTheirCells) {
  const RandomMaskOptions options;
  for (RandomStream& random : testing::RandomStreams(3000)) {
    const BandSlice slice = random_slice(random, 90, 70, options);
    SCOPED_TRACE(testing::describe(slice));
    EXPECT_EQ(polygon_area(exact_polygon(slice)), static_cast<double>(area(slice)));
  }
}

TEST(Geometry, SmoothOutlinesMissAtMostAnEighthPerLineEnd) {
  const RandomMaskOptions options;
  for (RandomStream& random : testing::RandomStreams(3000)) {
    const BandSlice slice = random_slice(random, 90, 70, options);
    SCOPED_TRACE(testing::describe(slice));
    const double seen = polygon_area(smooth_polygon(slice));
    EXPECT_NEAR(seen, static_cast<double>(area(slice)), 4 * 0.125 + 1e-9);
    EXPECT_LE(smooth_polygon(slice).size(), 6u);
  }
}

TEST(Geometry, ARectangleHasFourCorners) {
  const BandSlice full = band_slice({2, 5}, {1, 8}, MaskType::Full);
  EXPECT_EQ(exact_polygon(full).size(), 4u);
  EXPECT_EQ(smooth_polygon(full).size(), 4u);
  EXPECT_EQ(polygon_area(smooth_polygon(full)), 21.0);
}

TEST(Geometry, EmptySlicesHaveNoOutline) {
  const BandSlice empty{.q0 = 3, .q1 = 3, .k0 = 0, .k1 = 9};
  const BandSlice reversed{.q0 = 0, .q1 = 4, .k0 = 0, .k1 = 4, .d_min = 1, .d_max = -1};
  for (const BandSlice& slice : {empty, reversed}) {
    EXPECT_TRUE(exact_polygon(slice).empty());
    EXPECT_TRUE(smooth_polygon(slice).empty());
  }
}

TEST(Geometry, PartsOfACutCoverTheWhole) {
  const BandSlice causal = band_slice({0, 1000}, {0, 1000}, MaskType::Causal);
  double sum = 0.0;
  for (std::int32_t at = 0; at < 1000; at += 125) {
    sum += polygon_area(exact_polygon(cut_q(causal, {at, at + 125})));
  }
  EXPECT_EQ(sum, 500500.0);
}

}  // namespace
}  // namespace magi::draw
