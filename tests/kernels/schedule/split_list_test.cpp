// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/split_list.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/schedule/expand_list.hpp"
#include "mask/random_mask.hpp"

namespace magi::test {
namespace {

bool is_each_one(const std::vector<int>& counts) {
  return std::all_of(counts.begin(), counts.end(), [](int count) { return count == 1; });
}

bool is_list_of(const ForwardList& list, const Mask& mask) {
  const ExpandedList expanded = expand_list(list);
  return is_each_one(expanded.owners) && is_each_one(expanded.writers) && expanded.is_inside &&
         expanded.pairs == expand(mask);
}

TileShape random_shape(RandomStream& random) {
  const std::int32_t keys = 8 * random.between(2, 4);
  return {.rows = 16 << random.between(0, 2),
          .keys = keys,
          .trimmed_keys = random.chance(30) ? 0 : 8 * random.between(1, keys / 8 - 1),
          .overhead = random.between(0, 3)};
}

TEST(SplitListTest, SplitsCountEveryPairAsOftenAsTheMask) {
  std::int64_t num_cut = 0;
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomStream random(seed);
    RandomMaskOptions options;
    options.max_rows_k = 400;
    const Mask mask = random_mask(random, options);
    const ForwardProblem problem{
        .rows_q = mask.rows_q, .rows_k = mask.rows_k, .heads_q = 4, .heads_kv = 2};
    ForwardList list = build_forward_list(problem, mask.slices, random_shape(random));
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
  ForwardList fault = good;
  fault.tiles[1].k_end -= 1;
  EXPECT_FALSE(is_list_of(fault, mask));
  fault = good;
  fault.tiles[1].k_begin -= 1;
  EXPECT_FALSE(is_list_of(fault, mask));
  fault = good;
  fault.tiles[1].record_end -= 1;
  EXPECT_FALSE(is_list_of(fault, mask));
  fault = good;
  fault.tiles[1].slot = fault.tiles[0].slot;
  EXPECT_FALSE(is_list_of(fault, mask));
  fault = good;
  fault.split_tiles.push_back(fault.split_tiles.front());
  EXPECT_FALSE(is_list_of(fault, mask));
}

}  // namespace
}  // namespace magi::test
