// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "plan/plan_support.hpp"
#include "support/refusal.hpp"

namespace magi {
namespace {

PlanConfig config_of(std::int32_t num_ranks) {
  return {.num_ranks = num_ranks, .num_heads_q = 32, .num_heads_kv = 8, .overlap_degree = 0};
}

std::int64_t most_runs(const Plan& plan) { return std::ranges::max(plan.report.rank_runs); }

std::string refusal(const Mask& mask, const PlanConfig& config) {
  return testing::refusal_of([&] { make_plan(mask, config); });
}

TEST(PlaceForRuns, RandomDocumentsKeepTheBoundWithEqualCounts) {
  double balance = 0.0, over_auto = 0.0;
  constexpr std::uint64_t kCases = 24;
  for (std::uint64_t seed = 0; seed < kCases; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomStream random(seed);
    const Mask mask = random_documents(random, random.between(4096, 32768), 64);
    PlanConfig config = config_of(random.between(2, 9));
    config.work = static_cast<WorkMode>(random.between(0, 3));
    config.devices_per_node = random.chance(30) ? 2 : 0;
    config.placement.uneven_shard = random.chance(30);
    config.placement.algorithm =
        static_cast<PlacementAlgorithm>(random.chance(70) ? 0 : 3 * random.between(0, 1));
    const Plan free = make_plan(mask, config);
    config.max_runs = random.between(1, 6);
    const Plan plan = make_plan(mask, config);
    EXPECT_LE(most_runs(plan), *config.max_runs);
    EXPECT_EQ(check_plan(plan), std::vector<std::string>{});
    EXPECT_EQ(plan, make_plan(mask, config));
    EXPECT_EQ(plan_from_json(plan_to_json(plan)), plan);
    EXPECT_EQ(plan.placement_q.chunk_size,
              resolve_chunk_size(mask.rows_q, config.num_ranks, config.placement));
    EXPECT_EQ(plan.placement_q.num_rows, free.placement_q.num_rows);
    for (std::int32_t rank = 0; rank < config.num_ranks; ++rank) {
      const std::int32_t even = plan.placement_q.num_chunks() / config.num_ranks;
      EXPECT_LE(plan.placement_q.chunks_of(rank).size(), static_cast<std::size_t>(even) + 1);
    }
    config.placement.algorithm = PlacementAlgorithm::SequentialSelect;
    EXPECT_LE(step_seconds(plan), step_seconds(make_plan(mask, config)));
    balance += plan.report.balance / kCases;
    over_auto += step_seconds(plan) / step_seconds(free) / kCases;
  }
  RecordProperty("balance", std::to_string(balance));
  RecordProperty("step_over_that_without_bound", std::to_string(over_auto));
}

TEST(PlaceForRuns, AZigzagStaysWhereItKeepsTheBound) {
  const std::vector<std::int32_t> rows{0, 32768};
  const Mask mask = mask_from_cu_seqlens(rows, rows, {.is_causal = true});
  PlanConfig config = config_of(8);
  const Plan free = make_plan(mask, config);
  EXPECT_EQ(free.report.rank_runs, (std::vector<std::int64_t>{1, 2, 2, 2, 2, 2, 2, 1}));
  config.max_runs = 2;
  EXPECT_EQ(make_plan(mask, config).placement_q, free.placement_q);
  config.max_runs = 1;
  EXPECT_EQ(most_runs(make_plan(mask, config)), 1);
}

TEST(PlaceForRuns, APriceOfRunsMakesThemFewer) {
  RandomStream random(7);
  const Mask mask = random_documents(random, 65536, 64);
  PlanConfig config = config_of(8);
  const Plan free = make_plan(mask, config);
  config.cost.seconds_per_run = 1.0;
  const Plan priced = make_plan(mask, config);
  EXPECT_LT(most_runs(priced), most_runs(free));
  EXPECT_EQ(check_plan(priced), std::vector<std::string>{});
  EXPECT_EQ(plan_from_json(plan_to_json(priced)), priced);
  const auto runs = static_cast<double>(most_runs(priced));
  EXPECT_GT(priced.report.forward_seconds, runs);
  EXPECT_LT(priced.report.forward_seconds, runs + 1.0);
  EXPECT_GT(priced.report.backward_seconds, runs);
  EXPECT_NE(priced.digest,
            make_plan_on(mask, config_of(8), priced.placement_q, priced.placement_k).digest);
}

TEST(PlaceForRuns, RandomTreesKeepTheBoundOrAreRefused) {
  std::int32_t num_kept = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomStream random(seed);
    std::vector<PrefixTreeNode> nodes;
    for (std::int32_t n = random.between(2, 20); n > 0; --n) {
      const auto last = static_cast<std::int32_t>(nodes.size()) - 1;
      nodes.push_back({.parent = random.between(-1, last), .rows = random.between(1, 600)});
    }
    const Mask mask = mask_prefix_tree(nodes);
    PlanConfig config = config_of(random.between(2, 4));
    config.max_runs = random.between(1, 4);
    const std::string reason = refusal(mask, config);
    if (reason != "accepted") {
      EXPECT_TRUE(reason.starts_with("max_runs is " + std::to_string(*config.max_runs))) << reason;
      continue;
    }
    ++num_kept;
    const Plan plan = make_plan(mask, config);
    EXPECT_LE(most_runs(plan), *config.max_runs);
    EXPECT_EQ(check_plan(plan), std::vector<std::string>{});
  }
  EXPECT_GT(num_kept, 10);
}

TEST(PlaceForRuns, SaysWhatCannotKeepTheBound) {
  const std::vector<std::int32_t> rows{0, 4096};
  const Mask mask = mask_from_cu_seqlens(rows, rows, {.is_causal = true});
  PlanConfig config = config_of(4);
  config.placement.algorithm = PlacementAlgorithm::Zigzag;
  config.max_runs = 1;
  EXPECT_EQ(refusal(mask, config),
            "max_runs is 1; allowed: 2 or more, the runs of a rank under this placement");
  const Plan zigzag = make_plan(mask, config_of(4));
  EXPECT_THROW(make_plan_on(mask, config, zigzag.placement_q, zigzag.placement_k), InvalidArgument);
  config.max_runs = 2;
  const Plan kept = make_plan_on(mask, config, zigzag.placement_q, zigzag.placement_k);
  EXPECT_EQ(kept.placement_q, zigzag.placement_q);
  Plan forged = kept;
  forged.config.max_runs = 1;
  EXPECT_EQ(check_plan(forged),
            std::vector<std::string>{"a rank has 2 runs after rows of other ranks, max_runs is 1"});
  config.max_runs = 0;
  EXPECT_EQ(refusal(mask, config), "max_runs is 0; allowed: 1 to 1073741823");
  config.max_runs = 2;
  const Mask cross{64, 128, {band_slice({0, 64}, {0, 128}, MaskType::Full)}};
  EXPECT_TRUE(refusal(cross, config).starts_with("max_runs is 2; allowed: none where keys"));
}

}  // namespace
}  // namespace magi
