// SPDX-License-Identifier: Apache-2.0
#include "plan/check/pair_edges.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "support/random_mask.hpp"
#include "support/random_streams.hpp"

namespace magi {
namespace {

constexpr std::int32_t kRows = 24;

/// Cuts a slice once in queries or keys, or into single rows.
std::vector<BandSlice> random_cuts(RandomStream& random, const BandSlice& slice) {
  std::vector<BandSlice> parts;
  const std::int32_t at = random.between(0, kRows);
  if (random.chance(40)) {
    parts = {cut_q(slice, {0, at}), cut_q(slice, {at, kRows})};
  } else if (random.chance(60)) {
    parts = {cut_k(slice, {0, at}), cut_k(slice, {at, kRows})};
  } else {
    for (std::int32_t q = slice.q0; q < slice.q1; ++q) parts.push_back(cut_q(slice, {q, q + 1}));
  }
  return parts;
}

/// How often each pair is held, less how often the other side holds it.
std::vector<std::int32_t> counts_of(const std::vector<BandSlice>& slices,
                                    const std::vector<BandSlice>& others) {
  std::vector<std::int32_t> counts(static_cast<std::size_t>(kRows) * kRows, 0);
  const auto add = [&](const std::vector<BandSlice>& side, std::int32_t times) {
    for (const BandSlice& slice : side) {
      for (std::int32_t q = slice.q0; q < slice.q1; ++q) {
        const Range keys = visible_keys(slice, q);
        for (std::int32_t k = keys.begin; k < keys.end; ++k) {
          counts[static_cast<std::size_t>(q * kRows + k)] += times;
        }
      }
    }
  };
  add(slices, 1);
  add(others, -1);
  return counts;
}

std::optional<std::int32_t> differing_row(const std::vector<BandSlice>& slices,
                                          const std::vector<BandSlice>& others) {
  planner::PairEdges edges(1);
  for (const BandSlice& slice : slices) edges.add(slice, 1);
  for (const BandSlice& slice : others) edges.add(slice, -1);
  return edges.differing_row();
}

TEST(PairEdges, AnyCutsOfASliceHoldItsPairs) {
  for (RandomStream& random : testing::RandomStreams(2000)) {
    std::vector<BandSlice> slices;
    for (std::int32_t i = random.between(1, 4); i > 0; --i) {
      slices.push_back(random_slice(random, kRows, kRows, {}));
    }
    std::vector<BandSlice> parts = slices;
    for (std::int32_t round = random.between(1, 3); round > 0; --round) {
      std::vector<BandSlice> cuts;
      for (const BandSlice& part : parts) {
        for (const BandSlice& cut : random_cuts(random, part)) cuts.push_back(cut);
      }
      parts = cuts;
    }
    EXPECT_EQ(differing_row(parts, slices), std::nullopt);
  }
}

TEST(PairEdges, FindsARowExactlyWhereTheCountsDiffer) {
  std::int32_t num_equal = 0;
  for (RandomStream& random : testing::RandomStreams(4000)) {
    std::vector<BandSlice> slices;
    for (std::int32_t i = random.between(1, 3); i > 0; --i) {
      slices.push_back(random_slice(random, kRows, kRows, {}));
    }
    std::vector<BandSlice> others;
    for (const BandSlice& slice : slices) {
      for (const BandSlice& cut : random_cuts(random, slice)) others.push_back(cut);
    }
    if (!others.empty()) {  // a fault, which a bound that does not bind forgives
      const auto last = static_cast<std::int32_t>(others.size()) - 1;
      BandSlice& slice = others[static_cast<std::size_t>(random.between(0, last))];
      const std::int32_t field = random.between(0, 3);
      if (field == 0 && slice.q0 < slice.q1) ++slice.q0;
      if (field == 1 && slice.k0 < slice.k1) --slice.k1;
      if (field == 2 && slice.d_max != kBandInfinity) --slice.d_max;
      if (field == 3 && slice.d_min != -kBandInfinity) --slice.d_min;
    }
    const std::vector<std::int32_t> counts = counts_of(slices, others);
    const auto row = differing_row(slices, others);
    const auto is_zero = [](std::int32_t count) { return count == 0; };
    ASSERT_EQ(row.has_value(), !std::ranges::all_of(counts, is_zero));
    num_equal += row ? 0 : 1;
    if (!row) continue;
    const auto begin = counts.begin() + static_cast<std::ptrdiff_t>(*row) * kRows;
    EXPECT_FALSE(std::all_of(begin, begin + kRows, is_zero)) << "row " << *row;
  }
  EXPECT_GT(num_equal, 200);
  EXPECT_LT(num_equal, 3800);
}

TEST(PairEdges, RowsAndKeysUpToTheLargestAreTold) {
  const BandSlice all = band_slice({0, kMaxRows}, {0, kMaxRows}, MaskType::Causal);
  EXPECT_EQ(differing_row({all}, {cut_q(all, {0, 5}), cut_q(all, {5, kMaxRows})}), std::nullopt);
  EXPECT_EQ(differing_row({all}, {cut_q(all, {0, kMaxRows - 1})}), kMaxRows - 1);
  // A diagonal of many rows in place of a key of many rows.
  EXPECT_TRUE(differing_row({all}, {band_slice({0, kMaxRows}, {0, kMaxRows}, MaskType::Full)}));
}

TEST(PairEdges, APairHeldTwiceIsNotOneHeldOnce) {
  const BandSlice slice = band_slice({3, 9}, {2, 9}, MaskType::Causal);
  EXPECT_EQ(differing_row({slice, slice}, {slice, slice}), std::nullopt);
  EXPECT_TRUE(differing_row({slice, slice}, {slice}));
  EXPECT_EQ(differing_row({}, {}), std::nullopt);
}

}  // namespace
}  // namespace magi
