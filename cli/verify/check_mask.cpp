// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "magi/mask_builders.hpp"
#include "verify/checks.hpp"

namespace magi::cli {
namespace {

/// The definition, in 64 bits: nothing of the library's algebra.
bool sees(const BandSlice& slice, std::int64_t i, std::int64_t j) {
  return i >= slice.q0 && i < slice.q1 && j >= slice.k0 && j < slice.k1 && j - i >= slice.d_min &&
         j - i <= slice.d_max;
}

/// Calls `visit` with every row and its multiplicities by the definition.
template <typename Visit>
void visit_rows(const Mask& mask, Visit visit) {
  std::vector<std::int32_t> counts(static_cast<std::size_t>(mask.rows_k));
  for (std::int32_t i = 0; i < mask.rows_q; ++i) {
    std::fill(counts.begin(), counts.end(), 0);
    for (const BandSlice& slice : mask.slices) {
      for (std::int32_t j = slice.k0; j < slice.k1; ++j) {
        if (sees(slice, i, j)) ++counts[static_cast<std::size_t>(j)];
      }
    }
    visit(i, counts);
  }
}

void expect(Findings& findings, const char* what, std::int64_t seen, std::int64_t truth) {
  if (seen == truth) return;
  findings.push_back(std::string(what) + " is " + std::to_string(seen) + ", by the definition " +
                     std::to_string(truth));
}

}  // namespace

Findings check_expansion(const Mask& mask, std::span<const std::uint16_t> expanded) {
  Findings findings;
  if (expanded.size() !=
      static_cast<std::size_t>(mask.rows_q) * static_cast<std::size_t>(mask.rows_k)) {
    return {"the expansion has " + std::to_string(expanded.size()) + " pairs"};
  }
  visit_rows(mask, [&](std::int32_t i, const std::vector<std::int32_t>& counts) {
    const std::uint16_t* row =
        expanded.data() + static_cast<std::int64_t>(i) * std::int64_t{mask.rows_k};
    const auto wrong = std::mismatch(counts.begin(), counts.end(), row);
    if (wrong.first == counts.end() || !findings.empty()) return;
    findings.push_back("pair (" + std::to_string(i) + ", " +
                       std::to_string(wrong.first - counts.begin()) + ") is expanded " +
                       std::to_string(*wrong.second) + " times, by the definition " +
                       std::to_string(*wrong.first));
  });
  return findings;
}

Findings check_area(const Mask& mask, std::int64_t pairs) {
  std::int64_t truth = 0;
  visit_rows(mask, [&](std::int32_t, const std::vector<std::int32_t>& counts) {
    for (const std::int32_t count : counts) truth += count;
  });
  Findings findings;
  expect(findings, "the area", pairs, truth);
  return findings;
}

Findings check_mask(const Mask& mask) {
  Findings findings = check_expansion(mask, expand(mask));
  const auto add = [&](Findings more) {
    findings.insert(findings.end(), more.begin(), more.end());
  };
  add(check_area(mask, area(mask)));
  if (mask_from_json(mask_to_json(mask)) != mask) findings.push_back("the mask's JSON differs");
  Mask shrunk = mask;
  for (BandSlice& slice : shrunk.slices) slice = shrink(slice);
  if (expand(shrunk) != expand(mask)) findings.push_back("shrunk slices hold other pairs");
  Mask typed{.rows_q = mask.rows_q, .rows_k = mask.rows_k, .slices = {}};
  for (const BandSlice& slice : mask.slices) {
    for (const TypedSlice& part : to_typed(slice)) {
      typed.slices.push_back(band_slice(part.q, part.k, part.type));
    }
  }
  if (expand(typed) != expand(mask)) findings.push_back("typed slices hold other pairs");
  return findings;
}

}  // namespace magi::cli
