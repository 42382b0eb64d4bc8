// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/forward_list.hpp"

#include <gtest/gtest.h>

#include "kernels/schedule/expand_list.hpp"
#include "kernels/schedule/host/tile_join.hpp"
#include "magi/error.hpp"
#include "mask/random_mask.hpp"
#include "support/random_streams.hpp"
#include "support/refusal.hpp"

namespace magi::test {
namespace {

ForwardProblem problem_of(const Mask& mask, std::int32_t heads_q, std::int32_t heads_kv) {
  return {.rows_q = mask.rows_q, .rows_k = mask.rows_k, .heads_q = heads_q, .heads_kv = heads_kv};
}

TEST(ForwardListTest, CountsEveryPairAsOftenAsTheMask) {
  for (RandomStream& random : testing::RandomStreams(4000)) {
    const Mask mask = random_mask(random);
    const TileShape shape = random_tile_shape(random);
    const std::int32_t group = 1 << random.between(0, 3);
    const ForwardProblem problem = problem_of(mask, 2 * group, 2);
    const std::int32_t packed_heads = 1 << random.between(0, group == 1 ? 0 : 1);
    ASSERT_TRUE(is_list_of(build_forward_list(problem, mask.slices, shape, packed_heads), mask));
    ASSERT_TRUE(is_list_of(build_forward_list(problem, mask.slices, shape), mask));
  }
}

TEST(ForwardListTest, HoldsForTheKernelsOwnTiles) {
  RandomMaskOptions options;
  options.max_rows_q = 600;
  options.max_rows_k = 600;
  for (RandomStream& random : testing::RandomStreams(60)) {
    const Mask mask = random_mask(random, options);
    for (const std::int32_t packed_heads : {1, 8}) {
      const ForwardProblem problem = problem_of(mask, 8, 1);
      ASSERT_TRUE(is_list_of(build_forward_list(problem, mask.slices, {}, packed_heads), mask));
    }
  }
}

TEST(ForwardListTest, PlantedFaultsAreSeen) {
  const Mask mask{300, 300, {band_slice({0, 300}, {0, 300}, MaskType::Causal)}};
  const ForwardList good = build_forward_list(problem_of(mask, 2, 1), mask.slices, {}, 1);
  ASSERT_TRUE(is_list_of(good, mask));
  void (*const faults[])(ForwardList&) = {
      [](ForwardList& list) { list.records[1].band.d_max += 1; },
      [](ForwardList& list) { list.records[0].band.k1 -= 1; },
      [](ForwardList& list) { list.records[2].band.q1 -= 1; },
      [](ForwardList& list) { list.tiles[0].record_end -= 1; },
      [](ForwardList& list) { list.tiles[0] = list.tiles[1]; },
  };
  for (const auto& plant : faults) {
    ForwardList fault = good;
    plant(fault);
    EXPECT_FALSE(is_list_of(fault, mask));
  }
  ForwardList fault = good;
  fault.groups_per_section += 1;
  fault.head_groups += 1;
  EXPECT_FALSE(is_list_of(fault, mask) && fault.num_items() == good.num_items());
}

TEST(ForwardListTest, ListsRowsWithoutKeysAndNoRowsAtAll) {
  const ForwardList list = build_forward_list(problem_of({400, 0, {}}, 4, 1), {}, {}, 4);
  EXPECT_EQ(list.tiles.size(), 13u);
  EXPECT_EQ(list.num_items(), 13);
  EXPECT_TRUE(list.records.empty());
  EXPECT_EQ(build_forward_list(problem_of({0, 9, {}}, 4, 1), {}, {}).num_items(), 0);
}

TEST(ForwardListTest, SectionsKeepHeadsOfAKvHeadTogetherLongestFirst) {
  const Mask mask{2048, 2048, {band_slice({0, 2048}, {0, 2048}, MaskType::Causal)}};
  ForwardProblem problem = problem_of(mask, 24, 6);
  problem.cache_bytes = 5 * 2048 * 512;  // five kv heads fit, sections are powers of two
  const ForwardList list = build_forward_list(problem, mask.slices, {}, 2);
  EXPECT_EQ(list.groups_per_section, 8);
  for (std::int64_t i = 1; i < list.num_items(); ++i) {
    const ForwardItem before = forward_item(list.order(), std::uint32_t(i - 1));
    const ForwardItem item = forward_item(list.order(), std::uint32_t(i));
    if (before.head_group / 8 != item.head_group / 8) continue;
    EXPECT_GE(list.tiles[static_cast<std::size_t>(before.work)].cost,
              list.tiles[static_cast<std::size_t>(item.work)].cost);
  }
}

TEST(ForwardListTest, PacksHeadsWhereDocumentsAreShort) {
  Mask mask{4096, 4096, {}};
  for (std::int32_t begin = 0; begin < 4096; begin += 64) {
    mask.slices.push_back(band_slice({begin, begin + 64}, {begin, begin + 64}, MaskType::Causal));
  }
  EXPECT_GT(build_forward_list(problem_of(mask, 8, 1), mask.slices, {}).packed_heads, 1);
  mask.slices = {band_slice({0, 4096}, {0, 4096}, MaskType::Full)};
  EXPECT_EQ(build_forward_list(problem_of(mask, 8, 1), mask.slices, {}).packed_heads, 1);
}

TEST(ForwardListTest, HoldsAtTheLargestRowCounts) {
  const std::int32_t rows = kMaxRows;
  const Mask mask{rows, rows, {}};
  const std::vector<BandSlice> slices = {
      band_slice({rows - 300, rows}, {rows - 700, rows}, MaskType::Causal),
      {.q0 = rows - 90, .q1 = rows, .k0 = 0, .k1 = 500}};
  ForwardProblem problem = problem_of(mask, 1, 1);
  const TileShape shape{.rows = 1 << 20, .keys = 128};
  const ForwardList list = build_forward_list(problem, slices, shape, 1);
  EXPECT_EQ(list.tiles.size(), 1024u);
  EXPECT_EQ(list.tiles.front().tile, 1023);
  EXPECT_EQ(list.records.size(), 2u);
}

TEST(ForwardListTest, TilesWalkKeysOfJoinedSlicesOnce) {
  // Siblings of 50 rows that see 64 keys of their parent, which lies before the first of them.
  Mask mask{164, 164, {band_slice({0, 64}, {0, 64}, MaskType::Causal)}};
  for (const std::int32_t begin : {64, 114}) {
    const Range rows{begin, begin + 50};
    mask.slices.push_back(band_slice(rows, {0, 64}, MaskType::Full));
    mask.slices.push_back(band_slice(rows, rows, MaskType::Causal));
  }
  const ForwardProblem problem = problem_of(mask, 1, 1);
  const ForwardList list = build_forward_list(problem, mask.slices, {}, 1);
  ASSERT_TRUE(is_list_of(list, mask));
  ASSERT_EQ(list.tiles.size(), 2u);
  // Rows 0 to 128: all see the parent. Rows 128 to 164: parent and own node do not touch.
  EXPECT_EQ(list.tiles[0].tile, 0);
  EXPECT_EQ(list.tiles[0].record_end - list.tiles[0].record_begin, 3);
  EXPECT_EQ(list.tiles[1].record_end - list.tiles[1].record_begin, 2);
  ForwardProblem cut = problem;
  cut.key_cut = 64;
  const std::vector<BandSlice> halves{{0, 164, 0, 64}, {0, 164, 64, 164}};
  EXPECT_EQ(build_forward_list(cut, halves, {}, 1).tiles[0].record_end, 2);
  EXPECT_EQ(build_forward_list(problem, halves, {}, 1).tiles[0].record_end, 1);
}

TEST(ForwardListTest, TilesOfManySlicesKeepTheirRecords) {
  std::vector<BandSlice> slices;
  for (std::int32_t i = kMostJoinedParts; i >= 0; --i) slices.push_back({0, 8, 4 * i, 4 * i + 4});
  const ForwardProblem problem{.rows_q = 8, .rows_k = 4 * kMostJoinedParts + 4};
  const ForwardList many = build_forward_list(problem, slices, {}, 1);
  EXPECT_EQ(many.tiles[0].record_end, kMostJoinedParts + 1);
  EXPECT_EQ(many.records.front().band, slices.front());
  slices.pop_back();
  EXPECT_EQ(build_forward_list(problem, slices, {}, 1).tiles[0].record_end, 1);
}

TEST(ForwardListTest, RefusesWhatItCannotPack) {
  const ForwardProblem problem{.rows_q = 10, .rows_k = 10, .heads_q = 6, .heads_kv = 2};
  EXPECT_THROW(build_forward_list(problem, {}, {}, 2), InvalidArgument);
  EXPECT_THROW(build_forward_list(problem, {}, {}, 3), InvalidArgument);
  EXPECT_THROW(build_forward_list(problem, {}, {}, 0), InvalidArgument);
  ForwardProblem uneven = problem;
  uneven.heads_q = 5;
  EXPECT_THROW(build_forward_list(uneven, {}, {}), InvalidArgument);
  const BandSlice outside{.q0 = 0, .q1 = 11, .k0 = 0, .k1 = 10};
  EXPECT_THROW(build_forward_list(problem, {&outside, 1}, {}), InvalidArgument);
}

TEST(ForwardListTest, RefusesMoreRecordsThanItNumbers) {
  const ForwardProblem problem{.rows_q = 1 << 22, .rows_k = 10};
  const std::vector<BandSlice> slices(1 << 16, {0, problem.rows_q, 0, problem.rows_k});
  EXPECT_EQ(testing::refusal_of([&] { build_forward_list(problem, slices, {}, 1); }),
            "number of records of q tiles is 2147483648; allowed: up to 2^31 - 1");
}

}  // namespace
}  // namespace magi::test
