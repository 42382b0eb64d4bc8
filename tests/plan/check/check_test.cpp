// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "magi/plan.hpp"
#include "plan/plan_oracle.hpp"
#include "plan/plan_support.hpp"
#include "support/random_streams.hpp"

namespace magi {
namespace {

std::string joined(const std::vector<std::string>& problems) {
  std::string text;
  for (const std::string& problem : problems) text += problem + "\n";
  return text;
}

Plan small_plan(std::int32_t rows, StageMode mode) {
  PlanConfig config;
  config.num_ranks = 4;
  config.num_heads_q = 4;
  config.num_heads_kv = 2;
  config.overlap_degree = 2;
  config.stage_mode = mode;
  config.min_stage_rows = 4;
  return make_plan(causal(rows), config);
}

TEST(CheckPlan, SoundPlansHaveNoProblems) {
  for (RandomStream& random : testing::RandomStreams(500)) {
    EXPECT_EQ(joined(check_plan(random_plan(random))), "");
  }
}

TEST(CheckPlan, PairsElsewhereInALargePlanAreFound) {
  for (const StageMode mode : {StageMode::Heads, StageMode::Rows}) {
    Plan plan = small_plan(16384, mode);
    EXPECT_EQ(joined(check_plan(plan)), "");
    // The same number of pairs, elsewhere: only the comparison of pairs can tell.
    BandSlice& slice = plan.ranks[3].slices.front();
    ASSERT_GT(slice.q0 + 1, slice.q0);
    slice = shift(slice, 0, 1);
    plan.digest = plan_digest(plan);
    EXPECT_NE(joined(check_plan(plan)), "");
  }
}

TEST(CheckPlan, PredictedTimesAreThoseOfTheSteps) {
  for (const WorkMode work : {WorkMode::Keys, WorkMode::Queries, WorkMode::Heads}) {
    PlanConfig config{.num_ranks = 16, .num_heads_q = 16, .num_heads_kv = 4};
    config.devices_per_node = 4;
    config.overlap_degree = 3;
    config.work = work;
    const Plan plan = make_plan(causal(16384), config);
    EXPECT_EQ(joined(check_plan(plan)), "");
    Plan hurried = plan;
    hurried.report.forward_seconds -= 1e-6;
    const std::string problems = joined(check_plan(hurried));
    EXPECT_NE(problems.find("the report predicts a forward of "), std::string::npos) << problems;
  }
}

/// Faults that the mutants of plan_mutants.hpp do not have; each leaves the plan well formed and
/// its digest right.
TEST(CheckPlan, EveryPlantedFaultIsFound) {
  const std::pair<const char*, std::function<void(Plan&)>> faults[] = {
      {"a time that is no number", [](Plan& p) { p.report.forward_seconds = std::nan(""); }},
      {"a slower machine", [](Plan& p) { p.config.cost.seconds_per_launch += 1e-6; }},
      {"a balance off by little", [](Plan& p) { p.report.balance *= 1.0 + 1e-9; }},
      {"a bound above the total",
       [](Plan& p) { p.report.lower_bound_bytes = p.report.total_bytes + 1; }},
      {"a chunk at two ranks", [](Plan& p) { p.placement_q.chunk_rank[0] ^= 1; }},
  };
  for (const StageMode mode : {StageMode::Heads, StageMode::Rows}) {
    for (const auto& [name, plant] : faults) {
      Plan plan = small_plan(256, mode);
      ASSERT_EQ(joined(check_plan(plan)), "");
      plant(plan);
      plan.digest = plan_digest(plan);
      EXPECT_FALSE(check_plan(plan).empty()) << name;
    }
  }
}

TEST(CheckPlan, APlanWithASecondQuerySegmentIsSound) {
  const Plan plan = rectangle_plan();
  EXPECT_EQ(joined(check_plan(plan)), "");
  EXPECT_EQ(testing::judge_plan(plan), "");
  // Keys and values of 32 rows, queries of 32 rows there and results back; 2 bytes an element.
  EXPECT_EQ(plan.report.pair_bytes,
            (std::vector<std::int64_t>{0, 32 * 2 * (2 * 256 + 4 * 128), 32 * 2 * 4 * 128, 0}));
  EXPECT_NE(describe(plan).find("1 stage of received keys, with 1 segment of received queries"),
            std::string::npos)
      << describe(plan);
}

TEST(CheckPlan, QueriesWhoseGradientsNeverComeBackAreFound) {
  Plan plan = rectangle_plan();
  plan.exchanges.pop_back();
  for (RankPlan& rank : plan.ranks) rank.backward.pop_back();
  plan.digest = plan_digest(plan);
  EXPECT_NE(joined(check_plan(plan)), "");
}

TEST(CheckPlan, AStaleDigestIsFound) {
  Plan plan = small_plan(64, StageMode::Rows);
  plan.digest ^= 1;
  EXPECT_EQ(joined(check_plan(plan)), "the digest is not that of the tables\n");
}

TEST(CheckPlan, BrokenTablesAreReportedBeforeTheyAreRead) {
  const std::vector<std::function<void(Plan&)>> faults = {
      [](Plan& p) { p.ranks.pop_back(); },
      [](Plan& p) { p.ranks[1].attends.clear(); },
      [](Plan& p) { p.ranks[1].k.segments.clear(); },
      [](Plan& p) { p.ranks[1].attends[0].k_segment = 99; },
      [](Plan& p) { p.ranks[1].attends[0].slices.end = 1 << 30; },
      [](Plan& p) { p.ranks[1].slices[0].k1 = 1 << 29; },
      [](Plan& p) { p.transfers[0].dst = -1; },
      [](Plan& p) { p.transfers[0].dst_row = 1 << 30; },
      [](Plan& p) { p.placement_k.rank_begin[1] = 1 << 30; },
      [](Plan& p) { p.placement_k.chunk_size = 0; },
      [](Plan& p) { p.report.pair_bytes.clear(); },
      [](Plan& p) { p.config.num_heads_kv = 0; },
      [](Plan& p) { p.mask.slices[0].q1 = -5; },
      [](Plan& p) { p.exchanges.clear(); },
      [](Plan& p) { p.exchanges[0].segment = 9; },
      [](Plan& p) { p.exchanges[0].role = static_cast<Role>(kNumRoles); },
      [](Plan& p) { p.ranks[1].q.segments.push_back({}); },
      [](Plan& p) { p.ranks[1].attends[0].q_segment = 1; },
      [](Plan& p) { p.ranks[1].forward[0].index = 99; },
      [](Plan& p) { p.ranks[1].forward[1].after[1] = 1; },
      [](Plan& p) { p.ranks[1].backward[0].kind = static_cast<StepKind>(7); },
      [](Plan& p) { p.transfers[0].space = static_cast<Space>(2); },
  };
  for (std::size_t i = 0; i < faults.size(); ++i) {
    Plan plan = small_plan(128, StageMode::Rows);
    faults[i](plan);
    EXPECT_FALSE(check_plan(plan).empty()) << "fault " << i;
  }
}

}  // namespace
}  // namespace magi
