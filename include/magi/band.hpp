// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

// The band slice and its closed algebra: cutting, moving and counting never leave one slice. The
// bodies are inline because planners call them thousands of times within microseconds.
//
// NOTE: rows stay below 2^30 and diagonals within +-2^30, so a difference of rows fits int32, but a
// row plus a diagonal may reach 2^31: such sums are formed after clamping or in int64.
namespace magi {

/// Stands for "no bound" on a diagonal; also one more than the largest row count.
inline constexpr std::int32_t kBandInfinity = 1 << 30;
inline constexpr std::int32_t kMaxRows = kBandInfinity - 1;

/// Half-open range of rows [begin, end).
struct Range {
  std::int32_t begin = 0;
  std::int32_t end = 0;

  constexpr std::int32_t size() const { return end > begin ? end - begin : 0; }
  constexpr bool empty() const { return end <= begin; }
  friend constexpr bool operator==(const Range&, const Range&) = default;
};

/// MagiAttention's four types. Causal is aligned bottom-right, inverse causal top-left.
enum class MaskType : std::int32_t {
  Full = 0,
  Causal = 1,
  InverseCausal = 2,
  BidirectionalCausal = 3
};

/// Query i in [q0, q1) sees key j in [k0, k1) iff d_min <= j - i <= d_max. The one representation
/// of a mask from the user's call down to the kernels; closed under cutting in q or k and under
/// moving to other row coordinates. A slice may be empty.
struct BandSlice {
  std::int32_t q0 = 0;
  std::int32_t q1 = 0;
  std::int32_t k0 = 0;
  std::int32_t k1 = 0;
  std::int32_t d_min = -kBandInfinity;
  std::int32_t d_max = kBandInfinity;

  friend constexpr bool operator==(const BandSlice&, const BandSlice&) = default;
};

/// Visible keys of query row i: [begin, end), Range{} when none. O(1).
constexpr Range visible_keys(const BandSlice& slice, std::int32_t i) {
  if (i < slice.q0 || i >= slice.q1) return {};
  const std::int64_t begin = std::max<std::int64_t>(slice.k0, std::int64_t{i} + slice.d_min);
  const std::int64_t end = std::min<std::int64_t>(slice.k1, std::int64_t{i} + slice.d_max + 1);
  if (begin >= end) return {};
  return {static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end)};
}

namespace detail {

/// 1 + 2 + ... + n, 0 for n <= 0; n <= 2^31.
constexpr std::int64_t triangle(std::int64_t n) { return n > 0 ? n * (n + 1) / 2 : 0; }

/// Pairs of the rectangle [0, rows) x [0, cols) with column - row <= diagonal: a sum of row lengths
/// diagonal + 1, diagonal + 2, ... as a difference of triangles, less the part right of the border.
constexpr std::int64_t pairs_up_to(std::int64_t rows, std::int64_t cols, std::int64_t diagonal) {
  const std::int64_t d = std::clamp(diagonal, -rows, cols);
  return triangle(rows + d) - triangle(d) - triangle(rows + d - cols);
}

/// Moves a diagonal, saturating at the sentinels: beyond them no pair of valid rows is decided.
constexpr std::int32_t move_diagonal(std::int32_t diagonal, std::int64_t by) {
  return static_cast<std::int32_t>(
      std::clamp<std::int64_t>(diagonal + by, -kBandInfinity, kBandInfinity));
}

}  // namespace detail

/// Number of visible (query, key) pairs. O(1), exact up to 2^30 rows (below 2^60 pairs).
constexpr std::int64_t area(const BandSlice& slice) {
  if (slice.q0 >= slice.q1 || slice.k0 >= slice.k1) return 0;
  const std::int64_t rows = std::int64_t{slice.q1} - slice.q0;
  const std::int64_t cols = std::int64_t{slice.k1} - slice.k0;
  const std::int64_t origin = std::int64_t{slice.k0} - slice.q0;
  const std::int64_t pairs = detail::pairs_up_to(rows, cols, slice.d_max - origin) -
                             detail::pairs_up_to(rows, cols, slice.d_min - origin - 1);
  return std::max<std::int64_t>(pairs, 0);
}

/// The part of the slice with queries in `q` (keys in `k`); may be empty (area 0) but its ranges
/// stay inside the slice's and never reverse. Diagonals stay.
constexpr BandSlice cut_q(const BandSlice& slice, Range q) {
  BandSlice cut = slice;
  cut.q0 = std::max(slice.q0, std::min(q.begin, slice.q1));
  cut.q1 = std::max(cut.q0, std::min(q.end, slice.q1));
  return cut;
}
constexpr BandSlice cut_k(const BandSlice& slice, Range k) {
  BandSlice cut = slice;
  cut.k0 = std::max(slice.k0, std::min(k.begin, slice.k1));
  cut.k1 = std::max(cut.k0, std::min(k.end, slice.k1));
  return cut;
}

/// The same pairs with the smallest q and k ranges that hold them, and infinite diagonals where a
/// bound does not bind; a slice of area 0 becomes BandSlice{}. In the result every row of the q
/// range sees a key and every row of the k range is seen.
constexpr BandSlice shrink(const BandSlice& slice) {
  if (slice.q0 >= slice.q1 || slice.k0 >= slice.k1) return {};
  const std::int32_t low = std::max(slice.d_min, slice.k0 - (slice.q1 - 1));
  const std::int32_t high = std::min(slice.d_max, slice.k1 - 1 - slice.q0);
  if (low > high) return {};
  BandSlice tight;
  tight.q0 = std::max(slice.q0, slice.k0 - high);
  tight.q1 = std::min(slice.q1, slice.k1 - low);
  tight.k0 = std::max(slice.k0, slice.q0 + low);
  tight.k1 = std::min(slice.k1, slice.q1 + high);
  if (low > tight.k0 - (tight.q1 - 1)) tight.d_min = low;
  if (high < tight.k1 - 1 - tight.q0) tight.d_max = high;
  return tight;
}

/// The same pairs in other coordinates: query rows move by dq, key rows by dk (infinite diagonals
/// stay infinite). The moved rows must be valid (0 <= begin <= end <= kMaxRows).
constexpr BandSlice shift(const BandSlice& slice, std::int32_t dq, std::int32_t dk) {
  const std::int64_t by = std::int64_t{dk} - dq;
  BandSlice moved = slice;
  moved.q0 += dq;
  moved.q1 += dq;
  moved.k0 += dk;
  moved.k1 += dk;
  if (slice.d_min != -kBandInfinity) moved.d_min = detail::move_diagonal(slice.d_min, by);
  if (slice.d_max != kBandInfinity) moved.d_max = detail::move_diagonal(slice.d_max, by);
  return moved;
}

}  // namespace magi
