// SPDX-License-Identifier: Apache-2.0
#include "magi/band.hpp"

#include <array>
#include <string>

#include "base/check.hpp"
#include "magi/mask.hpp"

namespace magi {
namespace {

constexpr std::array<std::string_view, 4> kTypeNames = {"full", "causal", "inv_causal",
                                                        "bi_causal"};

void require_range(std::string_view name, Range range) {
  if (range.begin < 0 || range.begin > range.end || range.end > kMaxRows) {
    throw invalid(name, std::to_string(range.begin) + ":" + std::to_string(range.end),
                  "0 <= begin <= end <= " + std::to_string(kMaxRows));
  }
}

/// Which edges of a band move by one key per row; the others rest.
MaskType type_of_edges(bool left_moves, bool right_moves) {
  if (left_moves) return right_moves ? MaskType::BidirectionalCausal : MaskType::InverseCausal;
  return right_moves ? MaskType::Causal : MaskType::Full;
}

/// Rows of a tight slice on which neither edge bends, as one slice of a type.
TypedSlice typed_piece(const BandSlice& tight, Range rows, MaskType type) {
  TypedSlice piece;
  piece.q = rows;
  piece.k = {visible_keys(tight, rows.begin).begin, visible_keys(tight, rows.end - 1).end};
  if (rows.size() > 1) piece.type = type;  // every type is full on one row
  return piece;
}

}  // namespace

std::string_view mask_type_name(MaskType type) {
  const auto code = static_cast<std::int32_t>(type);
  if (code < 0 || code > 3) throw invalid("mask type", code, "0, 1, 2, 3");
  return kTypeNames[static_cast<std::size_t>(code)];
}

BandSlice band_slice(Range q, Range k, MaskType type) {
  require_range("q range", q);
  require_range("k range", k);
  BandSlice slice{q.begin, q.end, k.begin, k.end};
  switch (type) {
    case MaskType::Full:
      return slice;
    case MaskType::Causal:
      slice.d_max = k.end - q.end;
      return slice;
    case MaskType::InverseCausal:
      slice.d_min = k.begin - q.begin;
      return slice;
    case MaskType::BidirectionalCausal:
      if (k.size() < q.size()) return {q.begin, q.end, k.begin, k.begin};
      slice.d_min = k.begin - q.begin;
      slice.d_max = k.end - q.end;
      return slice;
  }
  throw invalid("mask type", static_cast<std::int32_t>(type), "0, 1, 2, 3");
}

std::vector<TypedSlice> to_typed(const BandSlice& slice) {
  const BandSlice tight = shrink(slice);
  if (tight.q0 == tight.q1) return {};
  // The left edge rests on k0 up to row `left` and moves from there on; the right edge moves up to
  // row `right` and rests on k1 from there on. The bend row belongs to both phases, so each cut has
  // two places, of which the pair with the fewest distinct cuts inside the rows is taken.
  const std::int32_t left = tight.d_min == -kBandInfinity ? tight.q1 : tight.k0 - tight.d_min;
  const std::int32_t right = tight.d_max == kBandInfinity ? tight.q0 : tight.k1 - 1 - tight.d_max;
  std::int32_t left_cut = 0;
  std::int32_t right_cut = 0;
  int fewest = 3;
  const auto is_inside = [&](std::int32_t cut) { return cut > tight.q0 && cut < tight.q1; };
  for (const std::int32_t a : {left, left + 1}) {
    for (const std::int32_t b : {right + 1, right}) {
      const int cuts = (is_inside(a) ? 1 : 0) + (is_inside(b) && b != a ? 1 : 0);
      if (cuts >= fewest) continue;
      fewest = cuts;
      left_cut = a;
      right_cut = b;
    }
  }
  std::vector<TypedSlice> pieces;
  std::int32_t begin = tight.q0;
  for (const std::int32_t cut :
       {std::min(left_cut, right_cut), std::max(left_cut, right_cut), tight.q1}) {
    const std::int32_t end = std::clamp(cut, begin, tight.q1);
    if (end == begin) continue;
    const MaskType type = type_of_edges(begin >= left_cut, begin < right_cut);
    pieces.push_back(typed_piece(tight, {begin, end}, type));
    begin = end;
  }
  return pieces;
}

}  // namespace magi
