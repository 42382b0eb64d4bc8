// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "magi/plan.hpp"
#include "plan/plan_support.hpp"

namespace magi {
namespace {

std::string joined(const std::vector<std::string>& problems) {
  std::string text;
  for (const std::string& problem : problems) text += problem + "\n";
  return text;
}

Mask causal(std::int32_t rows) {
  return {rows, rows, {band_slice({0, rows}, {0, rows}, MaskType::Causal)}};
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
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    RandomStream random(seed);
    EXPECT_EQ(joined(check_plan(random_plan(random))), "") << "seed " << seed;
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

using Faults = std::vector<std::pair<const char*, std::function<void(Plan&)>>>;

/// Faults that leave the plan well formed and its digest right.
Faults table_faults() {
  return {
      {"a key bound off by one", [](Plan& p) { --p.ranks[2].slices.back().k1; }},
      {"a query bound off by one", [](Plan& p) { ++p.ranks[2].slices.back().q0; }},
      {"a diagonal off by one",
       [](Plan& p) {
         for (BandSlice& slice : p.ranks[1].slices) {
           if (slice.d_max != kBandInfinity) {
             --slice.d_max;
             return;
           }
         }
       }},
      {"a dropped slice",
       [](Plan& p) {
         p.ranks[3].slices[0] = BandSlice{0, 0, 0, 0};
       }},
      {"a wrong owner", [](Plan& p) { p.transfers[0].src = (p.transfers[0].src + 1) % 4; }},
      {"a wrong source row", [](Plan& p) { p.transfers.back().src_row ^= 1; }},
      {"a dropped transfer", [](Plan& p) { p.transfers.pop_back(); }},
      {"a doubled transfer", [](Plan& p) { p.transfers.push_back(p.transfers.back()); }},
      {"a short transfer", [](Plan& p) { --p.transfers[1].num_rows; }},
      {"a transfer of queries", [](Plan& p) { p.transfers[0].space = Space::Queries; }},
      {"a wrong area", [](Plan& p) { ++p.report.rank_area[1]; }},
      {"a wrong count of rows", [](Plan& p) { ++p.report.rank_rows[0]; }},
      {"a wrong count of received rows", [](Plan& p) { --p.report.remote_rows[3]; }},
      {"a wrong memory", [](Plan& p) { ++p.report.rank_memory[2]; }},
      {"a wrong balance", [](Plan& p) { p.report.balance *= 1.0 + 1e-9; }},
      {"a faster forward", [](Plan& p) { p.report.forward_seconds *= 0.99; }},
      {"a slower backward", [](Plan& p) { p.report.backward_seconds *= 1.01; }},
      {"more exposed", [](Plan& p) { p.report.exposed_comm_seconds += 1e-6; }},
      {"a time that is no number", [](Plan& p) { p.report.forward_seconds = std::nan(""); }},
      {"a slower machine", [](Plan& p) { p.config.cost.seconds_per_launch += 1e-6; }},
      {"a wrong ring", [](Plan& p) { ++p.report.ring_bytes; }},
      {"a wrong byte count", [](Plan& p) { ++p.report.pair_bytes[1]; }},
      {"a wrong total", [](Plan& p) { --p.report.total_bytes; }},
      {"a bound above the total",
       [](Plan& p) { p.report.lower_bound_bytes = p.report.total_bytes + 1; }},
      {"a chunk at two ranks", [](Plan& p) { p.placement_q.chunk_rank[0] ^= 1; }},
      {"another mask", [](Plan& p) { --p.mask.slices[0].d_max; }},
  };
}

/// Faults of what ranks do, in which order, and of what waits for what.
Faults step_faults() {
  return {
      {"swapped attends", [](Plan& p) { std::swap(p.ranks[2].attends[0], p.ranks[2].attends[1]); }},
      {"a missing head", [](Plan& p) { ++p.ranks[1].attends.back().heads.begin; }},
      {"an attention call before its rows",
       [](Plan& p) { p.ranks[1].forward.back().after[0] = -1; }},
      {"an attention call behind the wrong rows",
       [](Plan& p) { p.ranks[1].backward[3].after[0] = 1; }},
      {"an attention call that overwrites",
       [](Plan& p) { p.ranks[1].attends[1].is_merging = false; }},
      {"a first attention call that merges",
       [](Plan& p) { p.ranks[1].attends[0].is_merging = true; }},
      {"gradients before their attend", [](Plan& p) { p.ranks[1].backward.back().after[0] = 2; }},
      {"gradients never returned", [](Plan& p) { p.ranks[1].backward.pop_back(); }},
      {"an attention call left out", [](Plan& p) { p.ranks[1].forward.pop_back(); }},
      {"an attention call done twice", [](Plan& p) { p.ranks[1].forward.back().index = 1; }},
      {"exchanges in another order",
       [](Plan& p) { std::swap(p.ranks[1].forward[0].index, p.ranks[1].forward[1].index); }},
      {"an exchange of another role", [](Plan& p) { p.exchanges[0].role = Role::KeyGradients; }},
      {"an exchange of other heads", [](Plan& p) { --p.exchanges[1].heads.end; }},
      {"an exchange of a later stage", [](Plan& p) { ++p.exchanges[0].stage; }},
      {"an exchange by way of somebody", [](Plan& p) { p.exchanges[0].hop = 1; }},
  };
}

TEST(CheckPlan, EveryPlantedFaultIsFound) {
  Faults faults = table_faults();
  for (auto& fault : step_faults()) faults.push_back(fault);
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
  for (std::int32_t head = 0; head < 2; ++head) {
    EXPECT_EQ(attended_pairs(plan, head), expand(plan.mask));
  }
  // Keys and values of 32 rows, queries of 32 rows there and results back; 2 bytes an element.
  EXPECT_EQ(plan.report.pair_bytes,
            (std::vector<std::int64_t>{0, 32 * 2 * (2 * 256 + 4 * 128), 32 * 2 * 4 * 128, 0}));
  EXPECT_NE(describe(plan).find("1 stage of received keys, with 1 segment of received queries"),
            std::string::npos)
      << describe(plan);
}

TEST(CheckPlan, FaultsOfASecondQuerySegmentAreFound) {
  const Faults faults = {
      {"queries of another row", [](Plan& p) { --p.transfers[1].num_rows; }},
      {"queries of another rank", [](Plan& p) { p.transfers[1].src = 1; }},
      {"queries sent as keys", [](Plan& p) { p.transfers[1].space = Space::Keys; }},
      {"queries never sent", [](Plan& p) { p.transfers.pop_back(); }},
      {"a rectangle of the rank's own queries",
       [](Plan& p) { p.ranks[1].attends[2].q_segment = 0; }},
      {"a rectangle that merges", [](Plan& p) { p.ranks[1].attends[2].is_merging = true; }},
      {"a rectangle without its last query", [](Plan& p) { --p.ranks[1].slices[2].q1; }},
      {"a rectangle of other keys", [](Plan& p) { p.ranks[1].attends[2].k_segment = 1; }},
      {"a rectangle for one head",
       [](Plan& p) {
         p.ranks[1].attends[2].heads = {0, 1};
       }},
      {"a rectangle before its queries", [](Plan& p) { p.ranks[1].forward[4].after[0] = 0; }},
      {"results before the rectangle", [](Plan& p) { p.ranks[1].forward[5].after[0] = 3; }},
      {"results at an owner without its own part",
       [](Plan& p) { p.ranks[0].forward[3].after[0] = -1; }},
      {"results never returned", [](Plan& p) { p.exchanges[2].role = Role::KeysValues; }},
      {"gradients of queries never returned",
       [](Plan& p) {
         p.exchanges.pop_back();
         for (RankPlan& rank : p.ranks) rank.backward.pop_back();
       }},
      {"a query segment of rows that nothing fills",
       [](Plan& p) { p.ranks[1].q.segments[1].num_rows = 40; }},
  };
  for (const auto& [name, plant] : faults) {
    Plan plan = rectangle_plan();
    plant(plan);
    plan.digest = plan_digest(plan);
    EXPECT_FALSE(check_plan(plan).empty()) << name;
  }
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
