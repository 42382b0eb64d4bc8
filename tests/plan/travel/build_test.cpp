// SPDX-License-Identifier: Apache-2.0
#include "plan/travel/build.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "plan/cost/report.hpp"
#include "plan/plan_oracle.hpp"
#include "plan/travel/work_support.hpp"
#include "support/random_streams.hpp"

namespace magi::planner {
namespace {

/// A plan whose tiles are computed by `rank_of(tile)`.
template <typename RankOf>
Plan build(const GridCase& test, const PlanConfig& config, std::int32_t degree, RankOf&& rank_of) {
  std::vector<WorkPiece> pieces;
  for (const WorkTile& tile : test.grid.tiles) {
    const std::int32_t rank = rank_of(tile);
    for (const BandSlice& cut : test.grid.cuts_of(tile)) pieces.push_back({cut, rank});
  }
  std::ranges::stable_sort(pieces, {}, &WorkPiece::rank);
  Plan plan{
      .mask = test.mask, .config = config, .placement_q = test.rows_q, .placement_k = test.rows_k};
  plan.config.num_ranks = test.num_ranks;
  plan.config.overlap_degree = degree;
  const Layout layout_q = make_layout(test.rows_q);
  const Layout layout_k = make_layout(test.rows_k);
  build_work({layout_q, layout_k, pieces, degree}, plan);
  plan.report = make_report(plan);
  plan.digest = plan_digest(plan);
  return plan;
}

TEST(BuildWork, AnyShareOfWorkGivesASoundPlanInAnyNumberOfStages) {
  for (RandomStream& random : testing::RandomStreams(400)) {
    const GridCase test = random_grid(random);
    const PlanConfig config = random_config(random);
    const int percent_moved = random.chance(20) ? 0 : random.between(0, 100);
    const Plan plan =
        build(test, config, random.between(0, 5), [&](const WorkTile& tile) -> std::int32_t {
          if (random.chance(percent_moved)) return random.between(0, test.num_ranks - 1);
          return test.grid.q[static_cast<std::size_t>(tile.q)].owner;
        });
    ASSERT_EQ(check_plan(plan), std::vector<std::string>{});
    ASSERT_EQ(testing::judge_plan(plan), "");
    EXPECT_EQ(plan_from_json(plan_to_json(plan)), plan);
  }
}

TEST(BuildWork, ByHeadsEachStageBringsKeysAndQueriesOfASection) {
  const GridCase test = ordered_causal(64, 2, 16);
  const PlanConfig config{.num_heads_q = 4, .num_heads_kv = 4};
  // Rank 0 computes the lower left square with the queries of rank 1; rank 1 a tile of rank 0's.
  const Plan plan = build(test, config, 2, [](const WorkTile& tile) {
    if (tile.q < 2) return tile.k == 0 && tile.q == 1 ? 1 : 0;
    return tile.k < 2 ? 0 : 1;
  });
  EXPECT_EQ(check_plan(plan), std::vector<std::string>{});
  ASSERT_EQ(plan.exchanges.size(), 10u);
  EXPECT_EQ(plan.exchanges[0], (Exchange{Role::KeysValues, 1, {0, 2}, 0, 1}));
  EXPECT_EQ(plan.exchanges[1], (Exchange{Role::Queries, 1, {0, 2}, 0, 1}));
  EXPECT_EQ(plan.exchanges[2], (Exchange{Role::KeysValues, 1, {2, 4}, 0, 2}));
  EXPECT_EQ(plan.ranks[0].attends.size(), 3u);  // own ones, and the square in two sections
  EXPECT_FALSE(plan.ranks[0].attends[1].is_merging);
  EXPECT_EQ(plan.ranks[0].q.segments[1].num_rows, 32);
  EXPECT_EQ(plan.ranks[0].k.segments[1].num_rows, 0);
}

TEST(BuildWork, QueriesAloneMayTravel) {
  const GridCase test = ordered_causal(64, 2, 32);
  const Plan plan = build(test, {.num_heads_q = 2, .num_heads_kv = 2}, 1,
                          [&](const WorkTile& tile) { return tile.k; });
  EXPECT_EQ(check_plan(plan), std::vector<std::string>{});
  EXPECT_EQ(plan.ranks[0].k.segments.size(), 1u);
  ASSERT_EQ(plan.exchanges.size(), 3u);
  EXPECT_EQ(plan.exchanges[0].role, Role::Queries);
  EXPECT_EQ(plan.exchanges[1].role, Role::Results);
  EXPECT_EQ(plan.exchanges[2].role, Role::QueryGradients);
  EXPECT_EQ(plan.report.remote_rows, (std::vector<std::int64_t>{0, 0}));
}

TEST(BuildWork, DegreeZeroGathersKeysBesideTheOwnOnes) {
  const GridCase test = ordered_causal(64, 2, 16);
  const Plan plan = build(test, {.num_heads_q = 2, .num_heads_kv = 1}, 0, [](const WorkTile& tile) {
    return tile.q >= 2 && tile.k == 1 ? 0 : tile.q / 2;
  });
  EXPECT_EQ(check_plan(plan), std::vector<std::string>{});
  EXPECT_EQ(plan.ranks[1].k.segments[1].num_rows, 48);  // 16 come, 32 are its own
  ASSERT_EQ(plan.ranks[1].attends.size(), 1u);
  EXPECT_EQ(plan.ranks[1].attends[0].k_segment, 1);
  EXPECT_EQ(plan.ranks[0].attends.size(), 2u);  // own queries, then received ones
}

}  // namespace
}  // namespace magi::planner
