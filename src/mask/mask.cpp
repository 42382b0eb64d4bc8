// SPDX-License-Identifier: Apache-2.0
#include "magi/mask.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "base/check.hpp"
#include "base/words.hpp"

// Masks: descriptions of all kinds go in, lists of band slices come out, and what can be asked of
// them. Begin with include/magi/band.hpp, the slice and its algebra, which every layer above uses.
//
//   band, mask                   slices and masks themselves: types, validity, area, reach
//   builders                     masks from ranges, documents, windows, trees
//   runs, from_matrix            masks from rows of visible keys, whose bands band_grower finds
//   mask_json, form_*, forms     masks from text: slices, and forms that other programs know
//   join, transpose              what planners and kernels do with lists of slices
//   random_mask                  masks for tests and the command `verify`
namespace magi {
namespace {

constexpr std::int64_t kMaxExpandedPairs = std::int64_t{1} << 28;

void require_between(const std::string& name, std::int32_t value, std::int32_t low,
                     std::int32_t high) {
  if (value < low || value > high) {
    throw invalid(name, value, std::to_string(low) + " to " + std::to_string(high));
  }
}

bool is_valid(const BandSlice& s, const Mask& mask) {
  return s.q0 >= 0 && s.q0 <= s.q1 && s.q1 <= mask.rows_q && s.k0 >= 0 && s.k0 <= s.k1 &&
         s.k1 <= mask.rows_k && s.d_min >= -kBandInfinity && s.d_min <= s.d_max &&
         s.d_max <= kBandInfinity;
}

void require_valid(const BandSlice& s, const Mask& mask, std::size_t index) {
  const std::string name = element_name("slices", index);
  require_between(name + ".q0", s.q0, 0, mask.rows_q);
  require_between(name + ".q1", s.q1, s.q0, mask.rows_q);
  require_between(name + ".k0", s.k0, 0, mask.rows_k);
  require_between(name + ".k1", s.k1, s.k0, mask.rows_k);
  require_between(name + ".d_min", s.d_min, -kBandInfinity, kBandInfinity);
  require_between(name + ".d_max", s.d_max, s.d_min, kBandInfinity);
}

}  // namespace

void validate(const Mask& mask) {
  require_between("rows_q", mask.rows_q, 0, kMaxRows);
  require_between("rows_k", mask.rows_k, 0, kMaxRows);
  for (std::size_t i = 0; i < mask.slices.size(); ++i) {
    // The names are only formed for a slice that is known to be bad.
    if (!is_valid(mask.slices[i], mask)) require_valid(mask.slices[i], mask, i);
  }
}

std::int64_t area(const Mask& mask) {
  std::int64_t total = 0;
  for (const BandSlice& slice : mask.slices) {
    if (__builtin_add_overflow(total, area(slice), &total)) {
      throw invalid("area of the mask", "more than 2^63 - 1 pairs", "pairs that fit int64");
    }
  }
  return total;
}

Reach reach(const Mask& mask) {
  Reach farthest;
  for (const BandSlice& slice : mask.slices) {
    if (slice.q0 == slice.q1 || slice.k0 == slice.k1) continue;
    const std::int32_t first = std::max(slice.d_min, slice.k0 - slice.q1 + 1);
    const std::int32_t last = std::min(slice.d_max, slice.k1 - 1 - slice.q0);
    if (first > last) continue;
    farthest.before = std::max(farthest.before, -first);
    farthest.after = std::max(farthest.after, last);
  }
  return farthest;
}

std::vector<std::uint16_t> expand(const Mask& mask) {
  validate(mask);
  const std::int64_t pairs = std::int64_t{mask.rows_q} * mask.rows_k;
  if (pairs > kMaxExpandedPairs) {
    throw invalid("rows_q * rows_k", pairs, "at most " + std::to_string(kMaxExpandedPairs));
  }
  std::vector<std::uint16_t> counts(static_cast<std::size_t>(pairs), 0);
  for (const BandSlice& slice : mask.slices) {
    for (std::int32_t i = slice.q0; i < slice.q1; ++i) {
      const Range keys = visible_keys(slice, i);
      std::uint16_t* const row = counts.data() + std::int64_t{i} * mask.rows_k;
      for (std::int32_t j = keys.begin; j < keys.end; ++j) {
        if (row[j] < std::numeric_limits<std::uint16_t>::max()) ++row[j];
      }
    }
  }
  return counts;
}

}  // namespace magi
