// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace magi {

/// Stands for "no bound" on a diagonal; also one more than the largest row count.
inline constexpr std::int32_t kBandInfinity = 1 << 30;
inline constexpr std::int32_t kMaxRows = kBandInfinity - 1;

/// Half-open range of rows [begin, end).
struct Range {
  std::int32_t begin = 0;
  std::int32_t end = 0;

  std::int32_t size() const { return end > begin ? end - begin : 0; }
  bool empty() const { return end <= begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

/// The four types of the original API. Causal is aligned bottom-right, inverse causal top-left.
enum class MaskType : std::int32_t {
  Full = 0,
  Causal = 1,
  InverseCausal = 2,
  BidirectionalCausal = 3
};

/// Query i in [q0, q1) sees key j in [k0, k1) iff d_min <= j - i <= d_max. The one representation
/// of a mask from the user's call down to the kernels; closed under cutting in q or k and under
/// moving to other row coordinates.
struct BandSlice {
  std::int32_t q0 = 0;
  std::int32_t q1 = 0;
  std::int32_t k0 = 0;
  std::int32_t k1 = 0;
  std::int32_t d_min = -kBandInfinity;
  std::int32_t d_max = kBandInfinity;

  friend bool operator==(const BandSlice&, const BandSlice&) = default;
};

/// The band of a typed (q range, k range) pair. Ranges must be valid (0 <= begin <= end <=
/// kMaxRows), else InvalidArgument.
BandSlice band_slice(Range q, Range k, MaskType type);

/// Visible keys of query row i: [begin, end), empty when none. O(1).
Range visible_keys(const BandSlice& slice, std::int32_t i);
/// Queries that see key row j: [begin, end), empty when none. O(1).
Range visible_queries(const BandSlice& slice, std::int32_t j);

/// Number of visible (query, key) pairs. O(1), exact.
std::int64_t area(const BandSlice& slice);

/// The part of the slice with queries in `q` (keys in `k`); may be empty (area 0). Diagonals stay.
BandSlice cut_q(const BandSlice& slice, Range q);
BandSlice cut_k(const BandSlice& slice, Range k);

/// The same pairs with the smallest q and k ranges that hold them, and infinite diagonals where a
/// bound does not bind; a slice of area 0 becomes BandSlice{}.
BandSlice shrink(const BandSlice& slice);

/// The same pairs in other coordinates: query rows move by dq, key rows by dk (infinite diagonals
/// stay infinite).
BandSlice shift(const BandSlice& slice, std::int32_t dq, std::int32_t dk);

/// The slice as at most three typed (q, k, type) triples of the original API, in order of q;
/// together they hold the same pairs.
struct TypedSlice {
  Range q;
  Range k;
  MaskType type = MaskType::Full;
  friend bool operator==(const TypedSlice&, const TypedSlice&) = default;
};
std::vector<TypedSlice> to_typed(const BandSlice& slice);

/// A mask over rows_q queries and rows_k keys: the union of its slices, a pair in n slices counting
/// n times.
struct Mask {
  std::int32_t rows_q = 0;
  std::int32_t rows_k = 0;
  std::vector<BandSlice> slices;

  friend bool operator==(const Mask&, const Mask&) = default;
};

/// Throws InvalidArgument naming the slice, field, value and allowed values if anything is outside
/// the row counts or reversed.
void validate(const Mask& mask);

std::int64_t area(const Mask& mask);

/// Dense multiplicity map, row-major [rows_q, rows_k]: for tests, checkers and pictures of small
/// masks.
std::vector<std::uint16_t> expand(const Mask& mask);

/// What a coverage check found.
struct Coverage {
  std::int64_t visible_pairs = 0;      ///< distinct pairs
  std::int64_t counted_pairs = 0;      ///< with multiplicity (= area)
  std::int64_t overlapping_pairs = 0;  ///< pairs in two or more slices
  std::int32_t max_multiplicity = 0;
  std::int32_t empty_rows = 0;   ///< queries without keys
  std::int32_t unseen_keys = 0;  ///< keys that no query sees
  std::optional<std::pair<std::int32_t, std::int32_t>>
      first_overlap;  ///< indices of two slices that share a pair
};
/// Exact, by a sweep over rows (no dense matrix).
Coverage check_coverage(const Mask& mask);

}  // namespace magi
