// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/tile_join.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/schedule/host/forward_list.hpp"
#include "mask/random_mask.hpp"
#include "support/random_streams.hpp"

namespace magi::test {
namespace {

constexpr std::int32_t kInfinity = kBandInfinity;

/// The parts that are left.
std::vector<BandSlice> joined(const std::vector<BandSlice>& parts, JoinAlong first,
                              std::int32_t key_cut = 0) {
  std::vector<BandRecord> records;
  for (const BandSlice& part : parts) records.push_back({.band = part});
  const std::int32_t count = join_parts(std::span(records), first, key_cut);
  std::vector<BandSlice> left;
  for (const BandRecord& record : records) left.push_back(record.band);
  EXPECT_TRUE(std::all_of(left.begin() + count, left.end(),
                          [](const BandSlice& band) { return band == BandSlice{}; }));
  left.resize(static_cast<std::size_t>(count));
  return left;
}

TEST(TileJoinTest, AncestorsAndOwnNodeBecomeOneBand) {
  // Rows of a node that see two ancestors, the last of which lies right before the node.
  const std::vector<BandSlice> parts{
      {64, 80, 0, 16}, {64, 80, 16, 64}, {64, 80, 64, 80, -kInfinity, 0}};
  EXPECT_EQ(joined(parts, JoinAlong::Queries),
            (std::vector<BandSlice>{{64, 80, 0, 80, -kInfinity, 0}}));
  EXPECT_EQ(joined(parts, JoinAlong::Queries, 16),
            (std::vector<BandSlice>{{64, 80, 0, 16}, {64, 80, 16, 80, -kInfinity, 0}}));
}

TEST(TileJoinTest, RowsOfSiblingsThatSeeTheSameKeysBecomeOneBand) {
  const std::vector<BandSlice> parts{{64, 70, 0, 16}, {70, 80, 0, 16}};
  EXPECT_EQ(joined(parts, JoinAlong::Queries), (std::vector<BandSlice>{{64, 80, 0, 16}}));
  EXPECT_EQ(joined(parts, JoinAlong::Keys), (std::vector<BandSlice>{{64, 80, 0, 16}}));
}

TEST(TileJoinTest, ATriangleAboveARectangleIsOneBand) {
  const std::vector<BandSlice> parts{{16, 32, 0, 16}, {0, 16, 0, 16, -kInfinity, 0}};
  EXPECT_EQ(joined(parts, JoinAlong::Keys),
            (std::vector<BandSlice>{{0, 32, 0, 16, -kInfinity, 0}}));
}

TEST(TileJoinTest, TheFirstSideDecidesWhereBothAreWanted) {
  // The upper left part could go on to the right or downwards.
  const std::vector<BandSlice> parts{{0, 8, 0, 8}, {0, 8, 8, 16}, {8, 16, 0, 8}};
  EXPECT_EQ(joined(parts, JoinAlong::Keys), (std::vector<BandSlice>{{8, 16, 0, 8}, {0, 8, 0, 16}}));
  EXPECT_EQ(joined(parts, JoinAlong::Queries),
            (std::vector<BandSlice>{{0, 8, 8, 16}, {0, 16, 0, 8}}));
}

TEST(TileJoinTest, KeysThatOtherRowsSeeTooAreCutOff) {
  // The last rows of a node that lies right behind its parent, and the first ones of a sibling.
  const std::vector<BandSlice> parts{
      {100, 110, 0, 110, -kInfinity, 0}, {110, 128, 0, 64}, {110, 128, 110, 128, -kInfinity, 0}};
  EXPECT_EQ(joined(parts, JoinAlong::Queries),
            (std::vector<BandSlice>{{100, 110, 64, 110, -kInfinity, 0},
                                    {100, 128, 0, 64},
                                    {110, 128, 110, 128, -kInfinity, 0}}));
  // Not all of the upper rows see all keys of the others.
  const std::vector<BandSlice> others{{100, 110, 0, 110, -kInfinity, 0}, {110, 128, 0, 102}};
  EXPECT_EQ(joined(others, JoinAlong::Queries), others);
  // Twice the same rows: only one can be joined.
  const std::vector<BandSlice> twice{{0, 8, 0, 20}, {0, 8, 0, 20}, {8, 16, 0, 9}};
  EXPECT_EQ(joined(twice, JoinAlong::Queries),
            (std::vector<BandSlice>{{0, 8, 0, 20}, {0, 8, 9, 20}, {0, 16, 0, 9}}));
}

TEST(TileJoinTest, OthersStayApart) {
  const std::vector<BandSlice> parts{
      {0, 8, 0, 8, -kInfinity, 2},  // a triangle left of a rectangle
      {0, 8, 8, 16},
      {0, 8, 17, 20},  // a gap
      {9, 16, 0, 8, -6, kInfinity},
      {9, 16, 0, 8, -6, kInfinity},  // twice the same
  };
  for (const JoinAlong first : {JoinAlong::Queries, JoinAlong::Keys}) {
    EXPECT_EQ(joined(parts, first), parts);
  }
}

/// Parts of one tile: random slices, cut at random rows and keys of their own and of others.
std::vector<BandSlice> random_parts(RandomStream& random, const Mask& mask) {
  const Range rows = random_range(random, mask.rows_q);
  const std::int32_t row = random.between(0, mask.rows_q);
  const std::int32_t key = random.between(0, mask.rows_k);
  std::vector<BandSlice> parts;
  for (const BandSlice& slice : mask.slices) {
    for (const Range q : {Range{0, row}, Range{row, mask.rows_q}}) {
      for (const Range k : {Range{0, key}, Range{key, mask.rows_k}}) {
        const BandSlice part = shrink(cut_k(cut_q(cut_q(slice, rows), q), k));
        if (part.q0 < part.q1) parts.push_back(part);
      }
    }
  }
  return parts;
}

TEST(TileJoinTest, KeepsEveryPairAsOftenAsItWas) {
  std::size_t num_before = 0, num_after = 0;
  for (RandomStream& random : testing::RandomStreams(2000)) {
    RandomMaskOptions options;
    options.max_slices = 8;
    Mask mask = random_mask(random, options);
    mask.slices = random_parts(random, mask);
    const auto before = expand(mask);
    num_before += mask.slices.size();
    const JoinAlong first = random.chance(50) ? JoinAlong::Keys : JoinAlong::Queries;
    mask.slices = joined(mask.slices, first);
    num_after += mask.slices.size();
    ASSERT_EQ(expand(mask), before);
    for (const BandSlice& band : mask.slices) ASSERT_EQ(shrink(band), band);
  }
  EXPECT_LT(num_after, num_before - num_before / 8);
}

}  // namespace
}  // namespace magi::test
