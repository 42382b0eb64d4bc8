// SPDX-License-Identifier: Apache-2.0
#include "plan/travel/queries.hpp"

#include <gtest/gtest.h>

#include "magi/error.hpp"
#include "plan/travel/work_support.hpp"
#include "support/random_streams.hpp"

namespace magi {
namespace {

Mask documents(const std::vector<std::int32_t>& ends) {
  return mask_from_cu_seqlens(ends, ends, {.is_causal = true});
}

TEST(MovingQueries, RandomPlansAreSoundAndTheSameEachTime) {
  for (RandomStream& random : testing::RandomStreams(150)) {
    RandomMaskOptions options;
    options.is_square = random.chance(60);
    const Mask mask = random_mask(random, options);
    PlanConfig config = random_config(random);
    config.work = random.chance(50) ? WorkMode::Queries : WorkMode::Auto;
    const Placement q = random_placement(random, mask.rows_q, config.num_ranks);
    const Placement k =
        options.is_square ? q : random_placement(random, mask.rows_k, config.num_ranks);
    const Plan plan = make_plan_on(mask, config, q, k);
    ASSERT_EQ(check_plan(plan), std::vector<std::string>{});
    EXPECT_EQ(plan, make_plan_on(mask, config, q, k));
    EXPECT_EQ(plan_from_json(plan_to_json(plan)), plan);
  }
}

TEST(MovingQueries, OneCausalDocumentMovesTwoThirdsOfTheBytesOfKeysAtMost) {
  PlanConfig config{.num_ranks = 8, .num_heads_q = 32, .num_heads_kv = 32};
  config.placement.chunk_size = 512;
  const auto bytes_of = [](const Plan& plan) {
    const planner::RowCosts costs = planner::row_costs(plan.config);
    std::int64_t bytes = 0;
    for (const Transfer& t : plan.transfers) {
      bytes += (t.space == Space::Keys ? costs.k : costs.q) * (t.src == t.dst ? 0 : t.num_rows);
    }
    return bytes;
  };
  const Mask mask = documents({0, 65536});
  const Plan keys = make_plan(mask, config);
  config.work = WorkMode::Queries;
  const Plan queries = make_plan(mask, config);
  EXPECT_EQ(check_plan(queries), std::vector<std::string>{});
  EXPECT_LT(3 * bytes_of(queries), 2 * bytes_of(keys));
  EXPECT_LT(queries.report.balance, 1.002);
}

TEST(MovingQueries, RowsInOrderAreEvenWhateverTheDocuments) {
  PlanConfig config{.num_ranks = 4, .num_heads_q = 8, .num_heads_kv = 8};
  config.placement = {.algorithm = PlacementAlgorithm::SequentialSelect, .chunk_size = 64};
  const Mask mask = documents({0, 700, 5000, 5100, 8192});
  EXPECT_GT(make_plan(mask, config).report.balance, 1.3);
  config.work = WorkMode::Queries;
  const Plan plan = make_plan(mask, config);
  EXPECT_EQ(check_plan(plan), std::vector<std::string>{});
  EXPECT_LT(plan.report.balance, 1.01);
  for (std::int32_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(plan.placement_q.chunks_of(rank).front() * plan.placement_q.chunk_size, rank * 2048);
  }
}

TEST(MovingQueries, AutoIsNeverSlowerThanKeysAloneInAnyNumberOfStages) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomStream random(seed);
    const Mask mask = random_documents(random, 65536, 128);
    PlanConfig config{.num_ranks = 8, .num_heads_q = 32, .num_heads_kv = 32};
    config.placement.chunk_size = 512;
    config.overlap_degree.reset();
    config.work = WorkMode::Auto;
    const Placement rows = place(mask, config.num_ranks, config.placement);
    const double seconds = step_seconds(make_plan_on(mask, config, rows, rows));
    config.work = WorkMode::Keys;
    for (const std::int32_t degree : {0, 1, 2, 4, 8}) {
      config.overlap_degree = degree;
      EXPECT_LE(seconds, step_seconds(make_plan_on(mask, config, rows, rows))) << degree;
    }
  }
}

TEST(ChosenWork, IsKeysAloneUnlessOthersGainEnough) {
  PlanConfig config{.num_ranks = 8, .num_heads_q = 64, .num_heads_kv = 8};
  config.work = WorkMode::Chosen;
  const Mask even = documents({0, 20000, 32768});
  EXPECT_EQ(make_plan(even, config).config.work, WorkMode::Keys);

  // Rows that see everything make one rank slow.
  const std::int32_t rows = 32768;
  const Mask mask{
      rows, rows, {{0, 512, 0, rows}, {512, rows, 0, 512}, {512, rows, 512, rows, -512, 512}}};
  const Plan chosen = make_plan(mask, config);
  EXPECT_EQ(check_plan(chosen), std::vector<std::string>{});
  EXPECT_EQ(chosen.config.work, WorkMode::Queries);
  EXPECT_EQ(chosen, make_plan(mask, chosen.config));
  config.work = WorkMode::Keys;
  const Plan keys = make_plan(mask, config);
  EXPECT_LT(step_seconds(chosen), 0.8 * step_seconds(keys));
  EXPECT_NE(describe(keys).find("work auto may save"), std::string::npos);
  EXPECT_EQ(describe(chosen).find("work auto may save"), std::string::npos);

  // Heads do not wait as long as keys, and keys less in another placement.
  const auto expect_faster = [](const Mask& of, PlanConfig by, WorkMode work) {
    by.work = WorkMode::Chosen;
    const Plan plan = make_plan(of, by);
    EXPECT_EQ(plan.config.work, work);
    EXPECT_EQ(check_plan(plan), std::vector<std::string>{});
    by.work = WorkMode::Keys;
    EXPECT_LT(step_seconds(plan), 0.9 * step_seconds(make_plan(of, by)));
  };
  expect_faster(documents({0, 1500, 6500, 7500, 15500, 20000, 32768}),
                {.num_ranks = 8, .num_heads_q = 32, .num_heads_kv = 32}, WorkMode::Heads);
  expect_faster(documents({0, 3000, 4096}), {.num_ranks = 4, .num_heads_q = 32, .num_heads_kv = 8},
                WorkMode::Keys);

  config.work = WorkMode::Chosen;
  const Placement& held = keys.placement_q;
  EXPECT_EQ(make_plan_on(mask, config, held, held).placement_q, held);
}

TEST(MovingQueries, AWindowInOrderExchangesHalosAlone) {
  PlanConfig config{.num_ranks = 4, .num_heads_q = 2, .num_heads_kv = 2, .work = WorkMode::Auto};
  config.placement.algorithm = PlacementAlgorithm::SequentialSelect;
  const Mask mask = mask_from_window({0, 4096}, {0, 4096}, {127, 0}, 4096, 4096);
  const Plan plan = make_plan(mask, config);
  EXPECT_EQ(plan.report.remote_rows, (std::vector<std::int64_t>{0, 127, 127, 127}));
  EXPECT_EQ(plan.ranks[0].q.segments.size(), 1u);
}

TEST(MovingQueries, ManyRanksMoveKeysAlone) {
  const Mask mask = documents({0, 6500});
  PlanConfig config{.num_ranks = 65, .work = WorkMode::Queries};
  EXPECT_THROW(make_plan(mask, config), InvalidArgument);
  config.work = WorkMode::Auto;
  for (const RankPlan& rank : make_plan(mask, config).ranks) {
    EXPECT_EQ(rank.q.segments.size(), 1u);
  }
  config.num_ranks = 64;
  config.work = WorkMode::Queries;
  EXPECT_GT(make_plan(mask, config).ranks[0].q.segments.size(), 1u);
}

TEST(MovingQueries, CostsCountBothPasses) {
  const PlanConfig config{.num_heads_q = 4, .num_heads_kv = 2, .head_dim_qk = 8, .head_dim_v = 16};
  const planner::RowCosts costs = planner::row_costs(config);
  EXPECT_EQ(costs.k, 2 * (8 + 16) * (2 + 2 + 4));
  EXPECT_EQ(costs.q, 4 * (2 * 8 + 4 * 16 + 2 * (8 + 16 + 16) + 4 * 8) + 8 * 4);
}

TEST(MovingQueries, ModesHaveNames) {
  for (const WorkMode work : {WorkMode::Keys, WorkMode::Queries, WorkMode::Auto, WorkMode::Heads}) {
    EXPECT_EQ(work_from_name(work_name(work)), work);
  }
  EXPECT_THROW(work_from_name("rows"), InvalidArgument);
  EXPECT_THROW(work_name(static_cast<WorkMode>(4)), InvalidArgument);
  EXPECT_THROW(make_plan(documents({0, 64}), {.work = static_cast<WorkMode>(5)}), InvalidArgument);
}

}  // namespace
}  // namespace magi
