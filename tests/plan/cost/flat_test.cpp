// SPDX-License-Identifier: Apache-2.0
#include "plan/cost/flat.hpp"

#include <gtest/gtest.h>

#include "magi/error.hpp"
#include "plan/cost/report.hpp"
#include "plan/plan_support.hpp"

namespace magi {
namespace {

Plan heads_plan(const Mask& mask, std::int32_t num_shares, bool uneven) {
  PlanConfig config{.num_ranks = 4, .num_heads_q = 8, .num_heads_kv = 4};
  config.work = WorkMode::Heads;
  config.head_shares = num_shares;
  config.placement.chunk_size = 8;
  config.placement.uneven_shard = uneven;
  return make_plan(mask, config);
}

TEST(FlatPlan, OfOneShareIsThePlanItself) {
  PlanConfig config{.num_ranks = 4, .num_heads_q = 8, .num_heads_kv = 4};
  const Plan plan = make_plan(causal(64), config);
  EXPECT_EQ(flat_plan(plan), plan);
}

TEST(FlatPlan, IsASoundPlanOfTheHeadsOfOneShare) {
  for (const bool uneven : {false, true}) {
    for (const std::int32_t num_shares : {2, 4}) {
      const Mask mask = causal(61);
      const Plan plan = heads_plan(mask, num_shares, uneven);
      Plan flat = flat_plan(plan);
      EXPECT_EQ(flat.num_head_shares, 1);
      EXPECT_EQ(flat.config.num_heads_q, 8 / num_shares);
      EXPECT_EQ(flat.config.num_heads_kv, 4 / num_shares);
      EXPECT_EQ(area(flat.mask), num_shares * area(mask));
      EXPECT_EQ(flat.placement_q.num_rows, planner::rows_per_share(plan.placement_q) * num_shares);
      const PlanReport counted = planner::make_report(flat);
      EXPECT_EQ(flat.report.rank_area, counted.rank_area);
      EXPECT_EQ(flat.report.rank_rows, counted.rank_rows);
      EXPECT_EQ(flat.report.remote_rows, counted.remote_rows);
      EXPECT_EQ(flat.report.pair_bytes, counted.pair_bytes);
      // As shares of heads return, which a plan of one share does not.
      EXPECT_EQ(flat.report.rank_memory, plan.report.rank_memory);
      flat.report = counted;
      flat.digest = plan_digest(flat);
      EXPECT_EQ(check_plan(flat), std::vector<std::string>{});
    }
  }
}

TEST(FlatPlan, RefusesSharesThatDivideNeitherHeadsNorRanks) {
  Plan plan = heads_plan(causal(64), 2, false);
  for (const std::int32_t count : {-1, 0, 3, 8}) {
    plan.num_head_shares = count;
    EXPECT_THROW(flat_plan(plan), InvalidArgument) << count;
    EXPECT_FALSE(check_plan(plan).empty()) << count;
  }
}

TEST(FlatPlan, OfMoreRowsThanThereMayBeIsRefused) {
  Plan plan = heads_plan(causal(64), 4, false);
  plan.placement_q = placement_from_chunks(kMaxRows / 2, kMaxRows / 8, 4, {0, 1, 2, 3, 0});
  EXPECT_THROW(planner::validate_shares(plan), InvalidArgument);
}

}  // namespace
}  // namespace magi
