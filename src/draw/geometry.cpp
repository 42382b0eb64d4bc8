// SPDX-License-Identifier: Apache-2.0
#include "draw/geometry.hpp"

namespace magi::draw {
namespace {

/// The part of a convex polygon where sign * (k - q - offset) <= 0 (Sutherland and Hodgman 1974).
Polygon clip(const Polygon& polygon, double sign, double offset) {
  const auto distance = [&](const Point& p) { return sign * (p.k - p.q - offset); };
  Polygon kept;
  for (std::size_t i = 0; i < polygon.size(); ++i) {
    const Point& from = polygon[i];
    const Point& to = polygon[(i + 1) % polygon.size()];
    const double a = distance(from);
    const double b = distance(to);
    if (a <= 0.0) kept.push_back(from);
    if ((a < 0.0 && b > 0.0) || (a > 0.0 && b < 0.0)) {
      const double t = a / (a - b);
      kept.push_back({.k = from.k + t * (to.k - from.k), .q = from.q + t * (to.q - from.q)});
    }
  }
  return kept;
}

void append_corner(Polygon& polygon, double k, double q) {
  if (!polygon.empty() && polygon.back().k == k && polygon.back().q == q) return;
  const std::size_t n = polygon.size();
  const bool is_straight = n >= 2 && polygon[n - 1].k == k && polygon[n - 2].k == k;
  if (is_straight) {
    polygon.back().q = q;
  } else {
    polygon.push_back({.k = k, .q = q});
  }
}

}  // namespace

Polygon smooth_polygon(const BandSlice& slice) {
  const BandSlice tight = shrink(slice);
  if (tight.q1 <= tight.q0) return {};
  Polygon polygon = {{.k = double(tight.k0), .q = double(tight.q0)},
                     {.k = double(tight.k1), .q = double(tight.q0)},
                     {.k = double(tight.k1), .q = double(tight.q1)},
                     {.k = double(tight.k0), .q = double(tight.q1)}};
  if (tight.d_max < kBandInfinity) polygon = clip(polygon, 1.0, tight.d_max + 0.5);
  if (tight.d_min > -kBandInfinity) polygon = clip(polygon, -1.0, tight.d_min - 0.5);
  return polygon;
}

Polygon exact_polygon(const BandSlice& slice) {
  const BandSlice tight = shrink(slice);
  Polygon polygon;
  for (std::int32_t i = tight.q0; i < tight.q1; ++i) {
    const Range keys = visible_keys(tight, i);
    append_corner(polygon, keys.end, i);
    append_corner(polygon, keys.end, i + 1);
  }
  for (std::int32_t i = tight.q1 - 1; i >= tight.q0; --i) {
    const Range keys = visible_keys(tight, i);
    append_corner(polygon, keys.begin, i + 1);
    append_corner(polygon, keys.begin, i);
  }
  return polygon;
}

}  // namespace magi::draw
