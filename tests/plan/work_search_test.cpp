// SPDX-License-Identifier: Apache-2.0
#include "plan/work_search.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "magi/error.hpp"
#include "plan/work_named.hpp"
#include "plan/work_support.hpp"

namespace magi {
namespace {

constexpr WorkSearch kNamed[] = {WorkSearch::NonCommunicationQo, WorkSearch::GreedyRandomGrid,
                                 WorkSearch::SimplexNetworkFlow, WorkSearch::FastSimplexNetworkFlow,
                                 WorkSearch::BinaryGreedy,       WorkSearch::BinaryGreedyParallel};

Plan causal_plan(WorkSearch search) {
  PlanConfig config{.num_ranks = 8,
                    .num_heads_q = 32,
                    .num_heads_kv = 32,
                    .work = WorkMode::Queries,
                    .work_search = search};
  config.placement.chunk_size = 512;
  return make_plan(mask_from_cu_seqlens(std::vector<std::int32_t>{0, 16384},
                                        std::vector<std::int32_t>{0, 16384}, {.is_causal = true}),
                   config);
}

TEST(WorkSearch, RandomPlansAreSoundAndTheSameEachTime) {
  for (const WorkSearch search : kNamed) {
    for (std::uint64_t seed = 0; seed < 25; ++seed) {
      SCOPED_TRACE(::testing::Message() << work_search_name(search) << ", seed " << seed);
      RandomStream random(seed);
      RandomMaskOptions options;
      options.is_square = random.chance(60);
      const Mask mask = random_mask(random, options);
      PlanConfig config = random_config(random);
      config.work = random.chance(80) ? WorkMode::Queries : WorkMode::Auto;
      config.work_search = search;
      const Placement q = random_placement(random, mask.rows_q, config.num_ranks);
      const Placement k =
          options.is_square ? q : random_placement(random, mask.rows_k, config.num_ranks);
      const Plan plan = make_plan_on(mask, config, q, k);
      const auto problems = check_plan(plan);
      ASSERT_TRUE(problems.empty()) << problems.front();
      EXPECT_EQ(plan, make_plan_on(mask, config, q, k));
      EXPECT_EQ(plan_from_json(plan_to_json(plan)), plan);
    }
  }
}

TEST(WorkSearch, NonCommunicationQoMovesKeysAlone) {
  const Plan plan = causal_plan(WorkSearch::NonCommunicationQo);
  for (const RankPlan& rank : plan.ranks) EXPECT_EQ(rank.q.segments.size(), 1u);
  EXPECT_GT(plan.report.balance, 1.8);  // rows are in order, and nothing evens areas out
}

TEST(WorkSearch, FlowsAreEvenAndGreedyOnesKeepToTheirLimit) {
  EXPECT_LE(causal_plan(WorkSearch::SimplexNetworkFlow).report.balance, 1.002);
  EXPECT_LE(causal_plan(WorkSearch::FastSimplexNetworkFlow).report.balance, 1.002);
  EXPECT_LE(causal_plan(WorkSearch::BinaryGreedy).report.balance, 1.101);
  EXPECT_LE(causal_plan(WorkSearch::BinaryGreedyParallel).report.balance, 1.101);
  EXPECT_LE(causal_plan(WorkSearch::GreedyRandomGrid).report.balance, 1.2);
}

TEST(WorkSearch, TilesOfOneOwnerStayInARandomGrid) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomStream random(seed);
    const GridCase test = random_grid(random);
    if (test.grid.tiles.empty()) continue;
    const planner::WorkScale work(test.grid, test.num_ranks, {1, 1});
    const auto rank_of = planner::share_by_random_grids(work);
    for (std::size_t t = 0; t < rank_of.size(); ++t) {
      const planner::WorkTile& tile = test.grid.tiles[t];
      EXPECT_TRUE(rank_of[t] >= 0 && rank_of[t] < test.num_ranks);
      if (work.owner_q(tile) == work.owner_k(tile)) {
        EXPECT_EQ(rank_of[t], work.owner_q(tile));
      }
    }
  }
}

TEST(WorkSearch, ARandomGridWithoutFreeTilesIsThatOfTheOwners) {
  GridCase test = ordered_causal(1024, 4, 64);
  test.mask.slices.clear();  // one document on each rank
  for (std::int32_t row = 0; row < 1024; row += 256) {
    test.mask.slices.push_back(band_slice({row, row + 256}, {row, row + 256}, MaskType::Causal));
  }
  const planner::Layout layout = planner::make_layout(test.rows_q);
  test.grid = planner::make_work_grid(test.mask, layout, layout, 64);
  const planner::WorkScale work(test.grid, test.num_ranks, {1, 1});
  EXPECT_EQ(planner::share_by_random_grids(work), planner::share_to_owners(work));
}

TEST(WorkSearch, AllComputeEachPairOnce) {
  for (const WorkSearch search : kNamed) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      SCOPED_TRACE(::testing::Message() << work_search_name(search) << ", seed " << seed);
      RandomStream random(seed);
      const GridCase test = random_grid(random);
      const auto pieces = planner::search_work(search, test.grid, test.num_ranks, {3, 2});
      std::int64_t total = 0;
      for (const std::int64_t load : loads_of(pieces, test.num_ranks)) total += load;
      EXPECT_EQ(total, test.grid.total_area());
      EXPECT_TRUE(std::ranges::is_sorted(pieces, {}, &planner::WorkPiece::rank));
    }
  }
}

TEST(WorkSearch, HasNamesAndIsOfPlansThatMoveQueries) {
  for (std::int32_t i = 0; i < kNumWorkSearches; ++i) {
    const auto search = static_cast<WorkSearch>(i);
    EXPECT_EQ(work_search_from_name(work_search_name(search)), search);
  }
  EXPECT_THROW(work_search_name(static_cast<WorkSearch>(kNumWorkSearches)), InvalidArgument);
  try {
    work_search_from_name("SNF");
    FAIL() << "an unknown name";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "work_search is SNF; allowed: threshold_accepting, non_communication_qo, "
                 "greedy_random_grid, simplex_network_flow, fast_simplex_network_flow, "
                 "binary_greedy, binary_greedy_parallel");
  }
  const Mask mask{64, 64, {band_slice({0, 64}, {0, 64}, MaskType::Causal)}};
  PlanConfig config{.num_ranks = 2, .work_search = WorkSearch::BinaryGreedy};
  EXPECT_THROW(make_plan(mask, config), InvalidArgument);
  config.work = WorkMode::Auto;
  EXPECT_TRUE(check_plan(make_plan(mask, config)).empty());
  config.work_search = static_cast<WorkSearch>(kNumWorkSearches);
  EXPECT_THROW(make_plan(mask, config), InvalidArgument);
}

}  // namespace
}  // namespace magi
