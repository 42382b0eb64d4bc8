// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/schedule_cost.hpp"

#include <gtest/gtest.h>

#include "kernels/schedule/backward_problem.hpp"
#include "kernels/schedule/host/backward_schedule.hpp"
#include "kernels/schedule/host/dq_order.hpp"
#include "kernels/schedule/host/slice_components.hpp"

namespace magi::test {
namespace {

/// Two k tiles of 2 and 6 steps, and one that nobody sees; 2 CTAs.
struct ThreeTiles {
  ThreeTiles() {
    problem.num_ctas = 2;
    tiling.tiles = {{0, 128, 0, 1}, {128, 256, 1, 2}, {256, 300, 2, 2}};
    tiling.records = {{.band = {.q0 = 0, .q1 = 128, .k0 = 0, .k1 = 128}},
                      {.band = {.q0 = 128, .q1 = 512, .k0 = 128, .k1 = 256}}};
  }
  TileCosts costs(const SchedulePolicy& policy = {}, const BackwardChoice& choice = {}) {
    tiling.component_of = find_components(tiling.records);
    std::vector<BandSlice> bands;
    for (const KeyRecord& record : tiling.records) bands.push_back(record.band);
    tiling.slice_components = connect_slices(bands);
    tiling.slice_components.by_rows.resize(tiling.tiles.size(), -1);
    tiling.slice_components.by_rows_and_keys.resize(tiling.tiles.size(), -1);
    return cost_tiles(problem, shape, tiling, 1, choice, policy);
  }

  BackwardTileShape shape;
  BackwardProblem problem{.rows_q = 512, .rows_k = 300, .heads_q = 4, .heads_kv = 2};
  Tiling tiling;
};

/// The k tiles in order, whole, all kv heads side by side.
Schedule whole_schedule(const TileCosts& tiles) {
  Schedule schedule;
  schedule.order = {1, 0, 2};
  schedule.tail_begin = 3;
  schedule.spans = {{.item_end = 4,
                     .num_tiles = 2,
                     .groups_per_item = tiles.groups,
                     .section_heads = 2,
                     .block_tiles = 2},
                    {.item_begin = 4,
                     .item_end = 6,
                     .tile_begin = 2,
                     .num_tiles = 1,
                     .groups_per_item = tiles.groups,
                     .section_heads = 2}};
  return schedule;
}

TEST(ScheduleCostTest, TilesKnowTheirStepsAndComponents) {
  const TileCosts tiles = ThreeTiles().costs();
  EXPECT_EQ(tiles.steps, (std::vector<std::int64_t>{2, 6, 0}));
  EXPECT_EQ(tiles.component_of, (std::vector<std::int32_t>{0, 1, -1}));
  EXPECT_EQ(tiles.longest_of, (std::vector<std::int64_t>{2, 6, 0}));
  EXPECT_EQ(tiles.by_cost, (std::vector<std::int32_t>{1, 0, 2}));
  EXPECT_EQ(tiles.num_components, 2);
  EXPECT_EQ(tiles.groups, 2);
  EXPECT_FALSE(tiles.is_uneven);
  EXPECT_TRUE(tiles.is_short);
}

TEST(ScheduleCostTest, WholeItemsEndWhenTheLastCtaIsDone) {
  const TileCosts tiles = ThreeTiles().costs();
  // Two groups a kv head: 2 x 6 + 3, 2 x 2 + 3 and 3 steps, one item of each for both CTAs.
  EXPECT_EQ(item_cost(tiles, 6, 1), 15);
  EXPECT_EQ(finish_time(tiles, whole_schedule(tiles)), 15 + 7 + 3);
  EXPECT_EQ(mean_time(tiles, whole_schedule(tiles)), 15 + 7 + 3);
}

TEST(ScheduleCostTest, ASplitEndsNoEarlierThanTheOneBeforeHandsOver) {
  ThreeTiles three;
  three.problem.num_ctas = 8;
  const TileCosts tiles = three.costs();
  Schedule schedule = whole_schedule(tiles);
  schedule.spans = {{.item_end = 12,
                     .num_tiles = 3,
                     .num_splits = 2,
                     .groups_per_item = 1,
                     .section_heads = 2,
                     .block_tiles = 3,
                     .slot_heads = 2}};
  // 6 + 3 steps and 2 for the hand-over. Both splits of the long k tile begin at once.
  EXPECT_EQ(item_cost(tiles, 6, 2), 11);
  EXPECT_EQ(finish_time(tiles, schedule), 11 + 2);
}

TEST(ScheduleCostTest, UnevenListsPayForTheTailAndForWideSections) {
  ThreeTiles three;
  three.tiling.records[1].band.q0 = 127;  // one component
  const TileCosts tiles = three.costs({.cache_misses = {0, 1}});
  ASSERT_EQ(tiles.num_components, 1);
  ASSERT_TRUE(tiles.is_uneven);
  Schedule schedule = whole_schedule(tiles);
  const std::int64_t longest = item_cost(tiles, 7, 1);
  EXPECT_EQ(longest, 2 * 7 + 3);
  EXPECT_EQ(finish_time(tiles, schedule), longest + 7 + 3);
  schedule.tail_begin = 1;
  EXPECT_EQ(finish_time(tiles, schedule), longest + 7 + 7 / 4 + 3);
  schedule.has_wide_sections = true;
  EXPECT_EQ(finish_time(tiles, schedule), longest + longest / 16 + 7 + 7 / 4 + 3);
}

TEST(ScheduleCostTest, ThePolicyDecides) {
  ThreeTiles three;
  const BackwardChoice choice{.is_deterministic = false};
  EXPECT_FALSE(three.costs({}, choice).walk.is_ordered);
  EXPECT_TRUE(three.costs({.narrow_tile = {1, 1}}, choice).walk.is_ordered);
  EXPECT_FALSE(three.costs({.narrow_tile = {1, 1}, .few_additions = 0}, choice).walk.is_ordered);
}

TEST(ScheduleCostTest, TinyListsAreOrderedAndConvert) {
  ThreeTiles three;  // now with a step in each of two k tiles
  three.problem.rows_q = 64;
  three.problem.heads_q = 2;
  for (KeyRecord& record : three.tiling.records) record.band.q0 = 0, record.band.q1 = 64;
  const BackwardChoice fast{.is_deterministic = false};
  const auto expect_tiny = [&](bool is_tiny, const SchedulePolicy& policy = {}) {
    const Walk walk = three.costs(policy, fast).walk;
    EXPECT_EQ(walk.is_ordered, is_tiny);
    EXPECT_EQ(walk.conversion_distance, is_tiny ? std::optional<std::int64_t>(0) : std::nullopt);
  };
  ASSERT_EQ(SchedulePolicy{}.tiny_list, 2);
  expect_tiny(true);
  expect_tiny(false, {.tiny_list = 1});
  expect_tiny(false, {.few_additions = 1});
  // Items that wait for keys would hold up others.
  three.problem.coming = {.parts = {{{200, 300}, 0}}, .num_sources = 1};
  expect_tiny(false);
  three.problem.coming = {};
  three.shape.has_converter = false;
  expect_tiny(false);
  three.shape.has_converter = true;
  three.problem.heads_q = 4;  // a step for each of two head groups
  expect_tiny(false);
  three.problem.heads_q = 2;
  three.problem.rows_q = three.tiling.records[0].band.q1 = 65;
  expect_tiny(false);
}

TEST(ScheduleCostTest, ComponentsWithoutAnOrderAreUnevenSooner) {
  ThreeTiles three;
  three.tiling.tiles[2].record_end = 3;
  three.tiling.records[1].band.q0 = 256;
  three.tiling.records.push_back({.band = {.q0 = 0, .q1 = 192, .k0 = 256, .k1 = 300}});
  // k tiles of 2 and 3 steps in one component and of 4 in the other: 10 / 9 of the cost.
  const BackwardChoice fast{.is_deterministic = false};
  const SchedulePolicy policy{.uneven_cost = {10, 9}, .uneven_apart_cost = {11, 10}};
  ASSERT_EQ(three.costs(policy, fast).num_components, 2);
  EXPECT_TRUE(three.costs(policy, fast).is_uneven);
  EXPECT_FALSE(three.costs(policy).is_uneven);
  three.tiling.records[2].band.q1 = 257;  // one component of 2, 4 and 5 steps: 15 / 11
  const SchedulePolicy steep{.uneven_cost = {15, 11}, .uneven_apart_cost = {11, 10}};
  ASSERT_EQ(three.costs(steep, fast).num_components, 1);
  EXPECT_FALSE(three.costs(steep, fast).is_uneven);
}

}  // namespace
}  // namespace magi::test
