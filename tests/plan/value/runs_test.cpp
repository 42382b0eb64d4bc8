// SPDX-License-Identifier: Apache-2.0
#include "plan/value/runs.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "magi/mask_builders.hpp"
#include "plan/plan_support.hpp"

namespace magi {
namespace {

constexpr std::int32_t kNone = -1;

/// Row by row.
std::vector<magi::Run> expected_runs(const Plan& plan) {
  const std::vector<std::int32_t> parents = parents_of(plan.mask);
  std::set<std::int32_t> forks;
  for (std::size_t row = 0; row < parents.size(); ++row) {
    const bool is_linked = parents[row] == static_cast<std::int32_t>(row) - 1;
    if (parents[row] != kNone && !is_linked) forks.insert(parents[row]);
  }
  std::vector<magi::Run> runs;
  for (std::int32_t rank = 0; rank < plan.placement_q.num_ranks; ++rank) {
    for (const std::int32_t row : global_rows(plan.placement_q, rank)) {
      if (row >= plan.mask.rows_q) break;
      const std::int32_t parent = parents[static_cast<std::size_t>(row)];
      const bool is_next = !runs.empty() && runs.back().rank == rank && runs.back().end == row &&
                           parent == row - 1 && !forks.contains(parent);
      if (!is_next) runs.push_back({rank, row, row, parent});
      runs.back().end = row + 1;
    }
  }
  return runs;
}

Plan placed(Mask mask, Placement placement) {
  Plan plan;
  plan.mask = std::move(mask);
  plan.placement_q = plan.placement_k = std::move(placement);
  return plan;
}

TEST(Runs, RandomMasksOnRandomPlacementsHaveThoseOfTheirRows) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomStream random(seed);
    RandomMaskOptions options;
    options.is_square = true;
    const Mask mask = random_mask(random, options);
    const Plan plan = placed(mask, random_placement(random, mask.rows_q, random.between(1, 6)));
    ASSERT_EQ(runs_of(plan), expected_runs(plan));
    ASSERT_EQ(planner::count_runs(mask, plan.placement_q),
              runs_after_others(mask, plan.placement_q));
  }
}

TEST(Runs, OfAZigzagTwoAtMostComeAfterAnotherRank) {
  const std::vector<std::int32_t> rows{0, 64};
  const Plan plan = placed(mask_from_cu_seqlens(rows, rows, {.is_causal = true}),
                           placement_from_chunks(64, 8, 4, {0, 1, 2, 3, 3, 2, 1, 0}));
  const std::vector<magi::Run> expected{{0, 0, 8, kNone}, {0, 56, 64, 55}, {1, 8, 16, 7},
                                        {1, 48, 56, 47},  {2, 16, 24, 15}, {2, 40, 48, 39},
                                        {3, 24, 40, 23}};
  EXPECT_EQ(runs_of(plan), expected);
  EXPECT_EQ(planner::count_runs(plan.mask, plan.placement_q),
            (std::vector<std::int64_t>{1, 2, 2, 1}));
}

TEST(Runs, DocumentsOnOneRankCostNothing) {
  const std::vector<std::int32_t> ends{0, 4, 8, 12, 16};
  const Plan plan = placed(mask_from_cu_seqlens(ends, ends, {.is_causal = true}),
                           placement_from_chunks(20, 4, 2, {0, 1, 0, 1, 1}));
  const std::vector<magi::Run> expected{
      {0, 0, 4, kNone}, {0, 8, 12, kNone}, {1, 4, 8, kNone}, {1, 12, 16, kNone}};
  EXPECT_EQ(runs_of(plan), expected);  // the padding of rank 1 is no run
  EXPECT_EQ(planner::count_runs(plan.mask, plan.placement_q), (std::vector<std::int64_t>{0, 0}));
}

TEST(Runs, BranchesComeAfterTheEndOfTheirPrefix) {
  const std::vector<PrefixTreeNode> nodes{
      {.parent = -1, .rows = 6}, {.parent = 0, .rows = 3}, {.parent = 0, .rows = 3}};
  const Plan plan = placed(mask_prefix_tree(nodes), placement_from_chunks(12, 3, 2, {0, 0, 0, 1}));
  const std::vector<magi::Run> expected{{0, 0, 6, kNone}, {0, 6, 9, 5}, {1, 9, 12, 5}};
  EXPECT_EQ(runs_of(plan), expected);
  EXPECT_EQ(planner::count_runs(plan.mask, plan.placement_q), (std::vector<std::int64_t>{0, 1}));
}

TEST(Runs, CrossAttentionHasNone) {
  const Plan plan = placed({8, 12, {band_slice({0, 8}, {0, 12}, MaskType::Full)}},
                           placement_from_chunks(8, 2, 2, {0, 1, 0, 1}));
  EXPECT_TRUE(runs_of(plan).empty());
  EXPECT_EQ(planner::count_runs(plan.mask, plan.placement_q), (std::vector<std::int64_t>{0, 0}));
}

TEST(Runs, ALongSequenceOfFewSlicesTakesNoRowByRow) {
  const Mask mask{kMaxRows, kMaxRows, {band_slice({0, kMaxRows}, {0, kMaxRows}, MaskType::Causal)}};
  const std::int32_t half = (kMaxRows + 1) / 2;
  const Plan plan = placed(mask, placement_from_chunks(kMaxRows, half, 2, {0, 1}));
  EXPECT_EQ(runs_of(plan),
            (std::vector<magi::Run>{{0, 0, half, kNone}, {1, half, kMaxRows, half - 1}}));
  EXPECT_EQ(planner::count_runs(mask, plan.placement_q), (std::vector<std::int64_t>{0, 1}));
}

}  // namespace
}  // namespace magi
