// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "magi/band.hpp"

namespace magi {

/// MagiAttention's names: "full", "causal", "inv_causal", "bi_causal".
std::string_view mask_type_name(MaskType type);

/// The band of a typed (q range, k range) pair, without keys where no pair is visible because the
/// keys are fewer than the queries of a bidirectional causal one. Ranges must be valid (0 <= begin
/// <= end <= kMaxRows), else InvalidArgument.
BandSlice band_slice(Range q, Range k, MaskType type);

/// A slice in the terms of MagiAttention: two ranges and a type.
struct TypedSlice {
  Range q;
  Range k;
  MaskType type = MaskType::Full;
  friend bool operator==(const TypedSlice&, const TypedSlice&) = default;
};
/// The slice as at most three typed (q, k, type) triples of MagiAttention, in order of q,
/// disjoint in q; together they hold the same pairs. None for an empty slice.
std::vector<TypedSlice> to_typed(const BandSlice& slice);

/// A mask over rows_q queries and rows_k keys: the union of its slices, a pair in n slices counting
/// n times.
struct Mask {
  std::int32_t rows_q = 0;
  std::int32_t rows_k = 0;
  std::vector<BandSlice> slices = {};

  friend bool operator==(const Mask&, const Mask&) = default;
};

/// Throws InvalidArgument naming the slice, field, value and allowed values if anything is outside
/// the row counts or reversed, diagonals too. Empty slices are allowed.
void validate(const Mask& mask);

/// Pairs with multiplicity; InvalidArgument if they exceed int64.
std::int64_t area(const Mask& mask);

/// The rows that the farthest keys lie before and after a query that sees them; 0: none.
struct Reach {
  std::int32_t before = 0;
  std::int32_t after = 0;
  friend bool operator==(const Reach&, const Reach&) = default;
};
Reach reach(const Mask& mask);

/// Dense multiplicity map, row-major [rows_q, rows_k], counts capped at 65535: for tests, checkers
/// and pictures of small masks. InvalidArgument above 2^28 pairs.
std::vector<std::uint16_t> expand(const Mask& mask);

}  // namespace magi
