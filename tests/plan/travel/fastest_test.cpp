// SPDX-License-Identifier: Apache-2.0
#include "plan/travel/fastest.hpp"

#include <gtest/gtest.h>

#include "plan/plan_support.hpp"
#include "plan/travel/build.hpp"
#include "plan/travel/queries.hpp"
#include "plan/value/hops.hpp"
#include "support/random_streams.hpp"

namespace magi::planner {
namespace {

TEST(FastestBuild, StaysTheFirstOfEquals) {
  const Plan slow = rectangle_plan();
  Plan fast = slow;
  for (RankPlan& rank : fast.ranks) {
    for (BandSlice& slice : rank.slices) slice.q1 = slice.q0;
  }
  Plan plan = slow;
  plan.config.stage_mode = fast.config.stage_mode = StageMode::Rows;
  std::vector<std::int32_t> built;
  const auto build = [&](std::int32_t degree) {
    built.push_back(degree);
    const Plan& made = degree == 2 || degree == 4 ? fast : slow;
    plan.ranks = made.ranks;
    plan.exchanges = made.exchanges;
    plan.transfers = made.transfers;
  };
  const PlanLoads loads = build_fastest(plan, build, {8, 1, 2, 4, 8, 2});
  EXPECT_EQ(built, (std::vector<std::int32_t>{8, 1, 2, 4}));
  EXPECT_EQ(plan, fast);
  EXPECT_EQ(loads.rank_area(0), 0);
}

TEST(FastestBuild, TakesTheDegreeThatIsAskedFor) {
  Plan plan = rectangle_plan();
  std::vector<std::int32_t> built;
  const auto build = [&](std::int32_t degree) { built.push_back(degree); };
  plan.config.overlap_degree = 3;
  build_asked_for(plan, build, {1, 2, 4, 8});
  EXPECT_EQ(built, std::vector<std::int32_t>{3});
}

TEST(FastestBuild, MakesStagesByHeadsAsABuildDoes) {
  std::size_t num_staged = 0;
  for (RandomStream& random : testing::RandomStreams(300)) {
    Plan plan = random_plan(random);
    plan.config.stage_mode = StageMode::Heads;
    plan.config.num_heads_kv = random.between(1, 6);
    plan.config.num_heads_q = plan.config.num_heads_kv;
    if (random.chance(50)) plan.config.devices_per_node = random.between(1, 4);
    plan.config.work = WorkMode::Queries;
    const Layout layout_q = make_layout(plan.placement_q);
    const Layout layout_k = make_layout(plan.placement_k);
    const std::vector<WorkPiece> pieces = find_pieces(plan.mask, layout_q, layout_k, plan.config);
    const bool is_collecting = random.chance(30);
    const auto build = [&](std::int32_t degree) {
      build_work({layout_q, layout_k, pieces, degree, is_collecting}, plan);
      choose_hops(plan);
    };
    const std::int32_t degree = random.between(0, 8);
    build(degree);
    const Plan direct = plan;
    const PlanLoads wanted(direct);
    const PlanLoads loads = build_fastest(plan, build, {degree});
    EXPECT_EQ(plan, direct);
    num_staged += plan.exchanges.size() > 2 && degree > 1 ? 1 : 0;
    for (std::int32_t rank = 0; rank < plan.config.num_ranks; ++rank) {
      const auto num_attends = plan.ranks[static_cast<std::size_t>(rank)].attends.size();
      for (std::size_t a = 0; a <= num_attends; ++a) {
        const auto attend = static_cast<std::int32_t>(a);
        EXPECT_EQ(loads.area(rank, attend), wanted.area(rank, attend));
      }
      EXPECT_EQ(loads.rank_area(rank), wanted.rank_area(rank));
    }
  }
  EXPECT_GT(num_staged, 100u);
}

}  // namespace
}  // namespace magi::planner
