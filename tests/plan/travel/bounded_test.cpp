// SPDX-License-Identifier: Apache-2.0
#include "plan/travel/bounded.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "plan/plan_support.hpp"
#include "support/random_streams.hpp"
#include "support/refusal.hpp"

namespace magi {
namespace {

PlanConfig config_of(std::int32_t num_ranks, std::optional<std::int64_t> bound) {
  return {
      .num_ranks = num_ranks, .num_heads_q = 32, .num_heads_kv = 8, .max_exchange_bytes = bound};
}

std::int64_t memory_of(const Plan& plan) {
  return *std::ranges::max_element(plan.report.rank_memory);
}

TEST(BoundedPlan, FourMillionTokensNeedNoMoreMemoryThanTheDefault) {
  for (const std::int32_t devices_per_node : {0, 8}) {
    PlanConfig config = config_of(256, {});
    config.devices_per_node = devices_per_node;
    const Plan plan = make_plan(causal(1 << 22), config);
    config.max_exchange_bytes = 0;
    const Plan unbounded = make_plan(causal(1 << 22), config);
    EXPECT_LE(memory_of(plan), kDefaultExchangeBytes);
    EXPECT_GT(memory_of(unbounded), std::int64_t{47} << 30);
    EXPECT_LE(step_seconds(plan), 1.03 * step_seconds(unbounded));
    EXPECT_EQ(plan.stages_in_flight, 2);
    EXPECT_NE(describe(plan).find("where 2 stages lie at a time"), std::string::npos);
  }
}

TEST(BoundedPlan, APlanThatFitsIsTheOneOfNoBound) {
  for (RandomStream& random : testing::RandomStreams(40)) {
    const Plan plan = random_plan(random);
    PlanConfig config = plan.config;
    config.max_exchange_bytes = 0;
    Plan unbounded = make_plan_on(plan.mask, config, plan.placement_q, plan.placement_k);
    unbounded.config.max_exchange_bytes.reset();
    EXPECT_EQ(unbounded, plan);
    EXPECT_EQ(plan_to_json(unbounded), plan_to_json(plan));
  }
}

/// The steps of a pass in words: K and G for keys of a stage and their gradients, A for an
/// attention call, and behind each the places of the steps that it waits for.
std::string words(const Plan& plan, const std::vector<Step>& steps) {
  std::string text;
  for (const Step& step : steps) {
    const bool is_attend = step.kind == StepKind::Attend;
    const auto index = static_cast<std::size_t>(step.index);
    const bool is_back = !is_attend && is_returning(plan.exchanges[index].role);
    text += (is_attend ? "A" : is_back ? "G" : "K") + std::to_string(stage_of(plan, steps, step));
    for (const std::int32_t before : step.after) {
      if (before >= 0) text += "," + std::to_string(before);
    }
    text += ' ';
  }
  return text;
}

TEST(BoundedPlan, AStepWaitsForWhatUsesTheMemoryBeforeIt) {
  PlanConfig config = config_of(2, 256 * 8 * 256 * 6 * 2 / 4);
  config.overlap_degree = 4;
  const Plan plan = make_plan(causal(512), config);
  EXPECT_TRUE(check_plan(plan).empty());
  // Steps are counted from 0: the keys of stage 3 wait for the attention call of stage 1, step 3.
  EXPECT_EQ(words(plan, plan.ranks[0].forward), "K1 K2 A0 A1,0 K3,3 A2,1 K4,5 A3,4 A4,6 ");
  // The attention call of stage 3 waits for its keys and for the gradients of stage 1 to be gone.
  EXPECT_EQ(words(plan, plan.ranks[0].backward),
            "K1 K2 A0 A1,0 K3,3 G1,3 A2,1 K4,6 G2,6 A3,4,5 G3,9,5 A4,7,8 G4,11,8 ");
}

TEST(BoundedPlan, ReadersBeginWithRowsOfDifferentOwners) {
  PlanConfig config = config_of(16, 200 << 20);
  config.stage_mode = StageMode::Rows;
  const Plan plan = make_plan(causal(1 << 18), config);
  std::vector<std::int64_t> sent(16 * plan.ranks[0].k.segments.size());
  for (const Transfer& t : plan.transfers) {
    sent[static_cast<std::size_t>(t.dst_segment) * 16 + static_cast<std::size_t>(t.src)] +=
        t.num_rows;
  }
  // An owner whose rows all 15 others asked for at once would send more than 15 times the mean.
  const std::int64_t mean = std::accumulate(sent.begin(), sent.end(), std::int64_t{0}) /
                            static_cast<std::int64_t>(sent.size());
  EXPECT_LE(*std::ranges::max_element(sent), 5 * mean);
}

TEST(BoundedPlan, TheFastestStagesThatKeepTheBoundAreChosen) {
  PlanConfig config = config_of(2, 512 << 20);
  const Mask mask = causal(1 << 18);
  const Plan plan = make_plan(mask, config);
  EXPECT_LE(memory_of(plan), 512 << 20);
  config.stage_mode = StageMode::Rows;
  EXPECT_LT(step_seconds(plan), step_seconds(make_plan(mask, config)));
  config.max_exchange_bytes = 100 << 20;  // eight heads do not suffice
  EXPECT_LE(memory_of(make_plan(mask, config)), 100 << 20);
  config.stage_mode = StageMode::Heads;
  EXPECT_THROW(make_plan(mask, config), InvalidArgument);
}

TEST(BoundedPlan, WhatNoPlanKeepsIsRefusedInASentence) {
  const Mask mask = causal(1 << 14);
  const auto refusal = [&](const PlanConfig& config) {
    return testing::refusal_of([&] { make_plan(mask, config); });
  };
  PlanConfig config = config_of(4, 1000);
  const std::string message = refusal(config);
  const std::string start =
      "max_exchange_bytes is 1000; allowed: 0 (no bound), or for this mask and config at least ";
  ASSERT_EQ(message.substr(0, start.size()), start);
  config.max_exchange_bytes = std::stoll(message.substr(start.size()));
  EXPECT_EQ(refusal(config), "accepted");
  config.overlap_degree = 1;  // one stage takes no turn
  EXPECT_NE(refusal(config).find("; stages that take turns need an overlap_degree of 3 or more"),
            std::string::npos);
  config.max_exchange_bytes = -1;
  EXPECT_EQ(refusal(config), "max_exchange_bytes is -1; allowed: 0 (no bound) or more");
}

TEST(BoundedPlan, GoesThroughJsonAndFaultsAreFound) {
  const Plan plan = make_plan(causal(2048), config_of(4, 5 << 20));
  ASSERT_EQ(plan.stages_in_flight, 2);
  EXPECT_EQ(plan_from_json(plan_to_json(plan)), plan);
  const auto is_refused = [&](const char* what, auto plant) {
    Plan wrong = plan;
    plant(wrong);
    wrong.digest = plan_digest(wrong);
    EXPECT_FALSE(check_plan(wrong).empty()) << what;
  };
  for (const bool is_backward : {false, true}) {
    const std::size_t count = (is_backward ? plan.ranks[1].backward : plan.ranks[1].forward).size();
    for (std::size_t i = 0; i < count; ++i) {
      for (const std::size_t wait : {0U, 1U}) {
        const auto after = [&](Plan& p) -> std::int32_t& {
          RankPlan& rank = p.ranks[1];
          return (is_backward ? rank.backward : rank.forward)[i].after[wait];
        };
        Plan sound = plan;
        if (after(sound) < 0) continue;
        is_refused("a wait dropped", [&](Plan& p) { after(p) = -1; });
      }
    }
  }
  is_refused("memory for fewer", [](Plan& p) { p.stages_in_flight = 1; });
  is_refused("a bound below", [](Plan& p) { p.config.max_exchange_bytes = 1; });
}

}  // namespace
}  // namespace magi
