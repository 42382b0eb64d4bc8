// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "mask/slice_lists.hpp"
#include "support/random_mask.hpp"
#include "support/random_streams.hpp"

namespace magi::testing {
namespace {

constexpr std::int32_t kInfinity = kBandInfinity;

TEST(JoinNeighbours, SlicesOfTheSameQueriesBecomeOne) {
  std::vector<BandSlice> slices{{4, 8, 10, 14, -kInfinity, 6}, {4, 8, 2, 10}};
  join_neighbours(slices);
  EXPECT_EQ(slices, (std::vector<BandSlice>{{4, 8, 2, 14, -kInfinity, 6}}));
}

TEST(JoinNeighbours, SlicesOfTheSameKeysBecomeOne) {
  std::vector<BandSlice> slices{{7, 9, 0, 4}, {2, 5, 0, 4}, {5, 7, 0, 4}};
  join_neighbours(slices);
  EXPECT_EQ(slices, (std::vector<BandSlice>{{2, 9, 0, 4}}));
}

TEST(JoinNeighbours, WhatIsJoinedInKeysIsJoinedInQueriesBehind) {
  std::vector<BandSlice> slices{{0, 2, 0, 4}, {0, 2, 4, 6}, {2, 5, 0, 6}};
  join_neighbours(slices);
  EXPECT_EQ(slices, (std::vector<BandSlice>{{0, 5, 0, 6}}));
}

TEST(JoinNeighbours, OtherNeighboursStayApart) {
  const std::vector<BandSlice> slices{
      {0, 2, 0, 4, -kInfinity, 2},  // a triangle above a rectangle
      {0, 2, 5, 6},                 // a gap in keys
      {2, 4, 0, 4},
      {2, 4, 0, 4},  // twice the same
      {4, 6, 0, 3},  // other keys
  };
  std::vector<BandSlice> joined = slices;
  join_neighbours(joined);
  EXPECT_EQ(joined, slices);
}

/// Cuts a slice at random rows and keys, some times over.
std::vector<BandSlice> random_pieces(RandomStream& random, const BandSlice& slice) {
  std::vector<BandSlice> pieces{slice};
  const std::int32_t cuts = random.between(0, 3);
  for (std::int32_t i = 0; i < cuts; ++i) {
    const BandSlice piece = pieces.back();
    pieces.pop_back();
    const bool is_by_rows = random.chance(50);
    const Range all = is_by_rows ? Range{piece.q0, piece.q1} : Range{piece.k0, piece.k1};
    const std::int32_t at = random.between(all.begin, all.end - 1);
    for (const Range part : {Range{all.begin, at}, Range{at, all.end}}) {
      const BandSlice cut = shrink(is_by_rows ? cut_q(piece, part) : cut_k(piece, part));
      if (cut.q0 < cut.q1) pieces.push_back(cut);
    }
  }
  return pieces;
}

TEST(JoinNeighbours, KeepsEveryPairAsOftenAsItWas) {
  std::size_t num_before = 0, num_after = 0;
  for (RandomStream& random : RandomStreams(400)) {
    Mask mask = random_mask(random);
    Mask pieces{mask.rows_q, mask.rows_k, {}};
    for (const BandSlice& slice : mask.slices) {
      const BandSlice small = shrink(slice);
      if (small.q0 == small.q1) continue;
      for (const BandSlice& piece : random_pieces(random, small)) pieces.slices.push_back(piece);
    }
    std::ranges::reverse(pieces.slices);
    const auto before = dense_counts(pieces);
    num_before += pieces.slices.size();
    join_neighbours(pieces.slices);
    num_after += pieces.slices.size();
    ASSERT_EQ(dense_counts(pieces), before) << describe(pieces);
  }
  EXPECT_LT(num_after, num_before);
}

}  // namespace
}  // namespace magi::testing
