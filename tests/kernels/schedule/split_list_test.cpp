// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/split_list.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/schedule/expand_list.hpp"
#include "mask/random_mask.hpp"
#include "support/random_streams.hpp"

namespace magi::test {
namespace {

TEST(SplitListTest, SplitsCountEveryPairAsOftenAsTheMask) {
  std::int64_t num_cut = 0;
  for (RandomStream& random : testing::RandomStreams(3000)) {
    RandomMaskOptions options;
    options.max_rows_k = 400;
    const Mask mask = random_mask(random, options);
    const ForwardProblem problem{
        .rows_q = mask.rows_q, .rows_k = mask.rows_k, .heads_q = 4, .heads_kv = 2};
    ForwardList list = build_forward_list(problem, mask.slices, random_tile_shape(random, 4));
    const SplitRule rule{.max_splits = random.between(0, 300), .min_cost = random.between(1, 9)};
    split_long_tiles(list, rule);
    num_cut += list.num_split_tiles();
    ASSERT_TRUE(is_list_of(list, mask));
    ASSERT_LE(list.num_slots(), max_slots(rule, list.head_groups));
    ASSERT_LE(list.num_split_tiles(), max_split_tiles(rule, list.head_groups));
    for (const SplitTile& split : list.split_tiles) ASSERT_GE(split.num_slots, 2);
    ASSERT_TRUE(
        std::is_sorted(list.tiles.begin(), list.tiles.end(),
                       [](const TileWork& a, const TileWork& b) { return a.cost > b.cost; }));
  }
  EXPECT_GT(num_cut, 1000);
}

/// One tile of 1,000 k tiles and two splits for each of 132 multiprocessors.
TEST(SplitListTest, OneLongRowFillsTheChip) {
  const ForwardProblem problem{.rows_q = 16, .rows_k = 128000, .heads_q = 8, .heads_kv = 1};
  const std::vector<BandSlice> slices = {band_slice({0, 16}, {0, 128000}, MaskType::Full)};
  ForwardList list = build_forward_list(problem, slices, {});
  ASSERT_EQ(list.num_items(), 1);
  split_long_tiles(list, {.max_splits = 264});
  EXPECT_EQ(list.num_items(), 250);  // of four k tiles: the least that is worth a split
  list = build_forward_list(problem, slices, {});
  split_long_tiles(list, {.max_splits = 25});
  EXPECT_EQ(list.num_items(), 25);
}

TEST(SplitListTest, EvenLoadsAreLeftWhole) {
  const ForwardProblem problem{.rows_q = 128 * 132, .rows_k = 20000, .heads_q = 1, .heads_kv = 1};
  const std::vector<BandSlice> slices = {
      band_slice({0, problem.rows_q}, {0, 20000}, MaskType::Full)};
  ForwardList list = build_forward_list(problem, slices, {});
  split_long_tiles(list, {.max_splits = 264});
  EXPECT_EQ(list.num_items(), 132);
  EXPECT_TRUE(list.split_tiles.empty());
}

TEST(SplitListTest, PlantedFaultsAreSeen) {
  const Mask mask{40, 900, {band_slice({0, 40}, {0, 900}, MaskType::Causal)}};
  const ForwardProblem problem{.rows_q = 40, .rows_k = 900, .heads_q = 2, .heads_kv = 1};
  ForwardList good = build_forward_list(problem, mask.slices, {}, 1);
  split_long_tiles(good, {.max_splits = 64, .min_cost = 2});
  ASSERT_GT(good.num_slots(), 3);
  ASSERT_TRUE(is_list_of(good, mask));
  void (*const faults[])(ForwardList&) = {
      [](ForwardList& list) { list.tiles[1].k_end -= 1; },
      [](ForwardList& list) { list.tiles[1].k_begin -= 1; },
      [](ForwardList& list) { list.tiles[1].record_end -= 1; },
      [](ForwardList& list) { list.tiles[1].slot = list.tiles[0].slot; },
      [](ForwardList& list) { list.split_tiles.push_back(list.split_tiles.front()); },
  };
  for (const auto& plant : faults) {
    ForwardList fault = good;
    plant(fault);
    EXPECT_FALSE(is_list_of(fault, mask));
  }
}

}  // namespace
}  // namespace magi::test
