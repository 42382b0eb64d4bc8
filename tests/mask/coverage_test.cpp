// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "magi/error.hpp"
#include "magi/mask.hpp"
#include "support/random_mask.hpp"

namespace magi {
namespace {

using testing::describe;
using testing::sees;

/// The definition of every figure, pair by pair.
Coverage coverage_by_definition(const Mask& mask) {
  Coverage found;
  std::vector<bool> is_seen(static_cast<std::size_t>(mask.rows_k), false);
  for (std::int32_t i = 0; i < mask.rows_q; ++i) {
    bool is_empty = true;
    for (std::int32_t j = 0; j < mask.rows_k; ++j) {
      std::vector<std::int32_t> holders;
      for (std::size_t s = 0; s < mask.slices.size(); ++s) {
        if (sees(mask.slices[s], i, j)) holders.push_back(static_cast<std::int32_t>(s));
      }
      if (holders.empty()) continue;
      is_empty = false;
      is_seen[static_cast<std::size_t>(j)] = true;
      const auto count = static_cast<std::int32_t>(holders.size());
      found.visible_pairs += 1;
      found.counted_pairs += count;
      found.max_multiplicity = std::max(found.max_multiplicity, count);
      if (count == 1) continue;
      found.overlapping_pairs += 1;
      if (!found.first_overlap) found.first_overlap = {holders[0], holders[1]};
    }
    found.empty_rows += is_empty ? 1 : 0;
  }
  found.unseen_keys = static_cast<std::int32_t>(std::count(is_seen.begin(), is_seen.end(), false));
  return found;
}

void expect_same(const Coverage& found, const Coverage& expected) {
  EXPECT_EQ(found.visible_pairs, expected.visible_pairs);
  EXPECT_EQ(found.counted_pairs, expected.counted_pairs);
  EXPECT_EQ(found.overlapping_pairs, expected.overlapping_pairs);
  EXPECT_EQ(found.max_multiplicity, expected.max_multiplicity);
  EXPECT_EQ(found.empty_rows, expected.empty_rows);
  EXPECT_EQ(found.unseen_keys, expected.unseen_keys);
  EXPECT_EQ(found.first_overlap, expected.first_overlap);
}

TEST(Coverage, EqualsTheDefinitionOnRandomMasks) {
  RandomStream random(51);
  for (int n = 0; n < 3000; ++n) {
    // Now and then longer stretches, in which moving edges overtake resting ones far from a bend.
    const std::int32_t most = n % 10 == 0 ? 100 : 28;
    RandomMaskOptions options{.min_rows = 0, .max_rows_q = most, .max_rows_k = most};
    options.max_slices = n % 3 == 0 ? 3 : 12;
    const Mask mask = random_mask(random, options);
    SCOPED_TRACE("seed 51 case " + std::to_string(n) + " " + describe(mask));
    expect_same(check_coverage(mask), coverage_by_definition(mask));
    if (HasFailure()) return;
  }
}

TEST(Coverage, OfNothing) {
  expect_same(check_coverage(Mask{}), Coverage{});
  Coverage rows_only;
  rows_only.empty_rows = 3;
  rows_only.unseen_keys = 5;
  expect_same(check_coverage(Mask{3, 5, {}}), rows_only);
  expect_same(check_coverage(Mask{3, 5, {{0, 3, 0, 5, 6, 7}, {1, 1, 0, 5}}}), rows_only);
}

TEST(Coverage, NamesTheFirstTwoSlicesThatShareAPair) {
  // Slices 2 and 0 meet in row 5; 1 and 3 share the earlier row 2.
  const Mask mask{
      8, 8, {{4, 8, 0, 8, -kBandInfinity, -5}, {2, 3, 6, 8}, {5, 6, 0, 1}, {2, 3, 7, 8}}};
  EXPECT_EQ(check_coverage(mask).first_overlap, (std::pair<std::int32_t, std::int32_t>{1, 3}));
  Mask later = mask;
  later.slices.pop_back();
  EXPECT_EQ(check_coverage(later).first_overlap, (std::pair<std::int32_t, std::int32_t>{0, 2}));
  later.slices.pop_back();
  EXPECT_EQ(check_coverage(later).first_overlap, std::nullopt);
}

TEST(Coverage, TheSameSliceManyTimes) {
  const BandSlice causal = band_slice({0, 10}, {0, 10}, MaskType::Causal);
  const Coverage found = check_coverage(Mask{10, 10, std::vector<BandSlice>(70000, causal)});
  EXPECT_EQ(found.visible_pairs, 55);
  EXPECT_EQ(found.counted_pairs, 55 * 70000);
  EXPECT_EQ(found.overlapping_pairs, 55);
  EXPECT_EQ(found.max_multiplicity, 70000);
}

TEST(Coverage, IsExactOnTheLargestMasks) {
  const std::int32_t n = kMaxRows;
  // A causal triangle and its strict complement tile the square; a diagonal on top overlaps.
  const Mask tiled{n, n, {{0, n, 0, n, -kBandInfinity, 0}, {0, n, 0, n, 1, kBandInfinity}}};
  const Coverage once = check_coverage(tiled);
  EXPECT_EQ(once.visible_pairs, std::int64_t{n} * n);
  EXPECT_EQ(once.max_multiplicity, 1);
  EXPECT_EQ(once.first_overlap, std::nullopt);
  Mask twice = tiled;
  twice.slices.push_back({0, n, 0, n, 7, 7});
  const Coverage found = check_coverage(twice);
  EXPECT_EQ(found.overlapping_pairs, n - 7);
  EXPECT_EQ(found.visible_pairs, std::int64_t{n} * n);
  EXPECT_EQ(found.first_overlap, (std::pair<std::int32_t, std::int32_t>{1, 2}));
}

TEST(Coverage, AHundredThousandPackedDocumentsWithWindows) {
  Mask mask{1 << 20, 1 << 20, {}};
  for (std::int32_t begin = 0; begin + 10 <= mask.rows_q; begin += 10) {
    mask.slices.push_back({begin, begin + 10, begin, begin + 10, -3, 0});
  }
  mask.slices.push_back({0, mask.rows_q, 0, 4, -kBandInfinity, -kBandInfinity + 1});  // empty
  const std::int64_t documents = (1 << 20) / 10;
  const Coverage found = check_coverage(mask);
  EXPECT_EQ(found.visible_pairs, documents * 34);
  EXPECT_EQ(found.max_multiplicity, 1);
  EXPECT_EQ(found.empty_rows, (1 << 20) % 10);
  EXPECT_EQ(found.unseen_keys, (1 << 20) % 10);
}

TEST(Coverage, RefusesAnInvalidMask) {
  EXPECT_THROW(check_coverage(Mask{2, 2, {{0, 3, 0, 2}}}), InvalidArgument);
}

}  // namespace
}  // namespace magi
