// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "magi/mask.hpp"

namespace magi::draw {

/// A point of (key, query) space: the cell of pair (i, j) is the square [j, j + 1) x [i, i + 1).
struct Point {
  double k = 0.0;
  double q = 0.0;
};
using Polygon = std::vector<Point>;

/// The slice as a convex polygon of at most six corners: its rectangle between the lines
/// j - i = d_min - 1/2 and j - i = d_max + 1/2, which halve the cells' corners, so that each corner
/// at which a line ends costs at most 1/8 of a cell against area(slice). Empty for an empty slice.
Polygon smooth_polygon(const BandSlice& slice);

/// The outline of the slice's cells, corner by corner: area equals area(slice) exactly. Rows
/// without keys must lie at the slice's ends only, which a band guarantees. Two corners per row and
/// side.
Polygon exact_polygon(const BandSlice& slice);

}  // namespace magi::draw
