// SPDX-License-Identifier: Apache-2.0
#include "plan/travel/heads.hpp"

#include <gtest/gtest.h>

#include "magi/error.hpp"
#include "magi/mask_builders.hpp"
#include "plan/plan_support.hpp"
#include "plan/value/config.hpp"
#include "support/random_streams.hpp"

namespace magi {
namespace {

Mask one_document(std::int32_t rows, MaskType type) {
  return {rows, rows, {band_slice({0, rows}, {0, rows}, type)}};
}

PlanConfig heads_config(std::int32_t num_ranks, std::int32_t heads_q, std::int32_t heads_kv) {
  PlanConfig config{.num_ranks = num_ranks, .num_heads_q = heads_q, .num_heads_kv = heads_kv};
  config.work = WorkMode::Heads;
  config.placement.chunk_size = 512;
  config.overlap_degree.reset();
  return config;
}

TEST(PossibleShares, AreCommonDivisorsOfRanksAndHeads) {
  using Counts = std::vector<std::int32_t>;
  EXPECT_EQ(planner::possible_shares(heads_config(8, 64, 8)), (Counts{2, 4, 8}));
  EXPECT_EQ(planner::possible_shares(heads_config(12, 32, 32)), (Counts{2, 4}));
  EXPECT_EQ(planner::possible_shares(heads_config(6, 30, 15)), (Counts{3}));
  EXPECT_EQ(planner::possible_shares(heads_config(7, 64, 8)), Counts{});
  EXPECT_EQ(planner::possible_shares(heads_config(8, 8, 1)), Counts{});
  PlanConfig config = heads_config(8, 64, 8);
  config.head_shares = 4;
  EXPECT_EQ(planner::possible_shares(config), Counts{4});
}

TEST(HeadsPlan, OfAsManySharesAsRanksMovesWhatUlyssesMoves) {
  PlanConfig config = heads_config(8, 64, 8);
  config.head_shares = 8;
  config.overlap_degree = 1;
  for (const MaskType type : {MaskType::Full, MaskType::Causal}) {
    const Plan plan = make_plan(one_document(8192, type), config);
    EXPECT_EQ(check_plan(plan), std::vector<std::string>{});
    EXPECT_EQ(plan.num_head_shares, 8);
    EXPECT_EQ(plan.report.balance, 1.0);
    // Of each row all shares but one leave the rank: q there, out back, k and v there.
    const std::int64_t row_bytes = (64 + 64 + 8 + 8) * 128 * 2;
    EXPECT_EQ(plan.report.total_bytes, 8192 * row_bytes / 8 * 7);
    EXPECT_EQ(plan.report.rank_rows, std::vector<std::int64_t>(8, 1024));
    for (const RankPlan& rank : plan.ranks) EXPECT_EQ(rank.slices.size(), 1u);
  }
}

TEST(KeysPlan, OfAFullMaskAndDegree0IsAnAllGather) {
  PlanConfig config = heads_config(8, 64, 8);
  config.work = WorkMode::Keys;
  config.overlap_degree = 0;
  const Plan plan = make_plan(one_document(8192, MaskType::Full), config);
  EXPECT_EQ(plan.report.total_bytes, plan.report.ring_bytes);
  for (const RankPlan& rank : plan.ranks) {
    ASSERT_EQ(rank.attends.size(), 1u);
    EXPECT_EQ(rank.k.segments.at(1).num_rows, 8192);
  }
}

TEST(HeadsPlan, OfFewerSharesIsEvenOverGroupsOfRanks) {
  PlanConfig config = heads_config(8, 32, 32);
  for (const std::int32_t num_shares : {2, 4}) {
    config.head_shares = num_shares;
    const Plan plan = make_plan(one_document(16384, MaskType::Causal), config);
    EXPECT_EQ(check_plan(plan), std::vector<std::string>{});
    EXPECT_EQ(plan.num_head_shares, num_shares);
    EXPECT_LT(plan.report.balance, 1.002);
    // The ranks of a group compute the same pairs.
    for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
      const std::size_t first = r - r % static_cast<std::size_t>(num_shares);
      EXPECT_EQ(plan.report.rank_area[r], plan.report.rank_area[first]);
    }
  }
}

TEST(HeadsPlan, OfManyGroupsKeepsQueriesInTheirGroup) {
  PlanConfig config = heads_config(132, 4, 2);
  config.placement.chunk_size = 4;
  config.head_shares = 2;
  EXPECT_EQ(check_plan(make_plan(one_document(4096, MaskType::Causal), config)),
            std::vector<std::string>{});
  config.head_shares = 0;
  config.num_heads_kv = config.num_heads_q = 5;
  EXPECT_THROW(make_plan(one_document(4096, MaskType::Causal), config), InvalidArgument);
}

TEST(HeadsPlan, WithoutACommonDivisorIsOneOfQueries) {
  PlanConfig config = heads_config(7, 8, 8);
  const Mask mask = one_document(4096, MaskType::Causal);
  Plan plan = make_plan(mask, config);
  EXPECT_EQ(plan.num_head_shares, 1);
  config.work = WorkMode::Queries;
  Plan queries = make_plan(mask, config);
  EXPECT_EQ(plan.ranks, queries.ranks);
}

TEST(HeadsPlan, RefusesSharesThatDoNotDivide) {
  PlanConfig config = heads_config(8, 64, 8);
  const Mask mask = one_document(4096, MaskType::Full);
  for (const std::int32_t count : {-1, 3, 5, 16}) {
    config.head_shares = count;
    EXPECT_THROW(make_plan(mask, config), InvalidArgument) << count;
  }
  config.head_shares = 2;
  config.work = WorkMode::Queries;
  EXPECT_THROW(make_plan(mask, config), InvalidArgument);
}

TEST(HeadsPlan, IsReadBackFromItsJson) {
  for (RandomStream& random : testing::RandomStreams(20)) {
    PlanConfig config = heads_config(4, 8, 4);
    config.placement.chunk_size = 4;
    config.placement.uneven_shard = random.chance(50);
    RandomMaskOptions options;
    options.min_rows = 40;
    const Plan plan = make_plan(random_mask(random, options), config);
    EXPECT_GT(plan.num_head_shares, 1);
    EXPECT_EQ(plan_from_json(plan_to_json(plan)), plan);
  }
}

TEST(AutoPlan, SharesHeadsWhereRowsAreFewAndHeadsAreMany) {
  PlanConfig config = heads_config(8, 32, 32);
  config.work = WorkMode::Auto;
  const Plan plan = make_plan(one_document(4096, MaskType::Full), config);
  EXPECT_EQ(plan.num_head_shares, 8);
  for (const WorkMode work : {WorkMode::Keys, WorkMode::Queries}) {
    config.work = work;
    EXPECT_LT(step_seconds(plan),
              0.85 * step_seconds(make_plan(one_document(4096, MaskType::Full), config)));
  }
}

TEST(AutoPlan, LeavesOutSharesOfMoreRowsThanThereMayBe) {
  PlanConfig config = heads_config(4, 4, 4);
  config.work = WorkMode::Auto;
  const Placement wide = placement_from_chunks(1 << 29, 1 << 27, 4, {0, 1, 2, 3});
  const Plan plan = make_plan_on(one_document(4096, MaskType::Full), config, wide, wide);
  EXPECT_EQ(plan.num_head_shares, 1);
  EXPECT_EQ(check_plan(plan), std::vector<std::string>{});
}

TEST(AutoPlan, IsNeverSlowerThanAnyOther) {
  for (RandomStream& random : testing::RandomStreams(20)) {
    PlanConfig config = heads_config(4, 8, random.chance(50) ? 8 : 2);
    config.placement.chunk_size = 64;
    RandomMaskOptions options;
    options.min_rows = 512;
    options.max_rows_q = options.max_rows_k = 2048;
    const Mask mask = random_mask(random, options);
    config.work = WorkMode::Auto;
    const double fastest = step_seconds(make_plan(mask, config));
    for (const WorkMode work : {WorkMode::Keys, WorkMode::Queries, WorkMode::Heads}) {
      config.work = work;
      EXPECT_LE(fastest, step_seconds(make_plan(mask, config))) << work_name(work);
    }
  }
}

}  // namespace
}  // namespace magi
