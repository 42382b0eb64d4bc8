// SPDX-License-Identifier: Apache-2.0
#include "plan/cost/timeline.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "plan/plan_support.hpp"
#include "support/random_streams.hpp"

namespace magi::planner {
namespace {

/// Rank 1 fetches 32 rows of rank 0 in two stages by heads; rates at which all parts matter.
Plan staged_plan() {
  PlanConfig config{.num_ranks = 2,
                    .num_heads_q = 4,
                    .num_heads_kv = 2,
                    .head_dim_qk = 8,
                    .head_dim_v = 8,
                    .element_bytes = 4,
                    .overlap_degree = 2};
  config.cost = {.flops_per_second = 1e9,
                 .backward_flops_per_second = 1e9,
                 .bytes_per_second = 1e9,
                 .memory_bytes_per_second = 1e9,
                 .seconds_per_transfer = 2e-6,
                 .seconds_per_launch = 5e-6};
  const Mask mask{64, 64, {band_slice({0, 64}, {0, 64}, MaskType::Causal)}};
  const Placement placement = placement_from_chunks(64, 32, 2, {0, 1});
  return make_plan_on(mask, config, placement, placement);
}

TEST(Timeline, StepsFollowWhatTheyWaitFor) {
  const Plan plan = staged_plan();
  const PlanLoads loads(plan);
  for (const bool is_backward : {false, true}) {
    const std::vector<PassTimes> times = predict_times(plan, loads, is_backward);
    ASSERT_EQ(times.size(), 2u);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      const auto& steps = is_backward ? plan.ranks[rank].backward : plan.ranks[rank].forward;
      ASSERT_EQ(times[rank].steps.size(), steps.size());
      std::int64_t last_end[2] = {0, 0};
      for (std::size_t i = 0; i < steps.size(); ++i) {
        const StepTime& time = times[rank].steps[i];
        std::int64_t& line = last_end[static_cast<std::size_t>(steps[i].kind)];
        std::int64_t begin = line;
        for (const std::int32_t before : steps[i].after) {
          if (before >= 0) {
            begin = std::max(begin, times[rank].steps[static_cast<std::size_t>(before)].end_ns);
          }
        }
        EXPECT_EQ(time.begin_ns, begin);
        EXPECT_GE(time.end_ns, begin);
        line = time.end_ns;
      }
      EXPECT_EQ(times[rank].end_ns, std::max(last_end[0], last_end[1]));
      EXPECT_EQ(times[rank].attends_end_ns, last_end[1]);
    }
  }
}

TEST(Timeline, RanksWithoutRemoteKeysHaveNoAreaThere) {
  const Plan plan = staged_plan();
  const PlanLoads loads(plan);
  ASSERT_EQ(plan.ranks[0].attends.size(), 1u);
  EXPECT_EQ(loads.area(0, 0), 32 * 33 / 2);
  EXPECT_EQ(loads.area(0, 1), 0);
  EXPECT_EQ(loads.area(1, 1), 32 * 32);
}

TEST(Timeline, DurationsAreThoseOfTheCostModel) {
  const Plan plan = staged_plan();
  const PlanLoads loads(plan);
  const PassTimes idle = predict_times(plan, loads, false)[0];
  const PassTimes busy = predict_times(plan, loads, false)[1];
  // 32 rows x 1 head x (8 + 8) elements x 4 bytes at 1 GB/s, 2 us for the peer, and two launches,
  // as rank 1 attends more than once.
  const std::int64_t exchange_ns = 32 * 16 * 4 + 2000 + 2 * 5000;
  EXPECT_EQ(loads.rows_in(1, plan.exchanges[0]), 32);
  EXPECT_EQ(loads.rows_out(1, plan.exchanges[0]), 0);
  EXPECT_EQ(loads.rows_in(0, plan.exchanges[2]), 32);
  EXPECT_EQ(busy.steps[0].end_ns, exchange_ns);
  EXPECT_EQ(busy.steps[1].begin_ns, exchange_ns);
  EXPECT_EQ(busy.steps[1].end_ns, 2 * exchange_ns);
  // 528 pairs x 4 query heads x 2 x (8 + 8) flops at 1 Gflop/s, and 5 us for the launch.
  EXPECT_EQ(busy.steps[2].end_ns, 528 * 4 * 32 + 5000);
  // 1024 pairs x 2 query heads for each kv head, merged into 32 rows x 2 heads x 8 x 4 bytes; a
  // launch and a third more, as it is not the first.
  constexpr std::int64_t kWork = 1024 * 2 * 32 + 5000;
  EXPECT_EQ(busy.steps[3].end_ns - busy.steps[3].begin_ns,
            kWork + 2 * 32 * 2 * 8 * 4 + 5000 + kWork / 3);
  // A rank that only sends waits for nothing.
  EXPECT_EQ(idle.steps[1].end_ns, 2 * exchange_ns);
  EXPECT_EQ(idle.steps[2].begin_ns, 0);
}

TEST(Timeline, TheOneAttendOfARankTakesKeysAsTheyCome) {
  PlanConfig config{.num_ranks = 2,
                    .num_heads_q = 1,
                    .num_heads_kv = 1,
                    .head_dim_qk = 8,
                    .head_dim_v = 8,
                    .element_bytes = 4,
                    .overlap_degree = 0};
  config.cost = {.flops_per_second = 1e9,
                 .backward_flops_per_second = 1e9,
                 .bytes_per_second = 1e9,
                 .seconds_per_transfer = 0,
                 .seconds_per_launch = 0};
  const Mask mask{64, 64, {band_slice({0, 64}, {0, 64}, MaskType::Full)}};
  const Placement placement = placement_from_chunks(64, 32, 2, {0, 1});
  const auto ends = [&](double bytes_per_second, bool is_backward) {
    config.cost.bytes_per_second = bytes_per_second;
    const Plan plan = make_plan_on(mask, config, placement, placement);
    const std::vector<StepTime> steps = predict_times(plan, PlanLoads(plan), is_backward)[0].steps;
    return std::pair(steps[1].end_ns, steps.back().end_ns);
  };
  constexpr std::int64_t kBytes = 32 * 16 * 4;
  constexpr std::int64_t kForward = 32 * 64 * 2 * 16;  // ns, half of it of keys that come
  constexpr std::int64_t kBackward = 32 * 64 * 2 * 5 * 8;
  // Keys that come early enough cost nothing; else half of what reads them is behind the last.
  EXPECT_EQ(ends(1e9, false).first, kForward);
  EXPECT_EQ(ends(1e7, false).first, 100 * kBytes + kForward / 4);
  // The backward waits for keys; gradients leave from its middle on.
  EXPECT_EQ(ends(1e9, true), std::pair(kBytes + kBackward, kBytes + kBackward));
  EXPECT_EQ(ends(1e7, true),
            std::pair(100 * kBytes + kBackward, 200 * kBytes + kBackward - kBackward / 2));
  config.devices_per_node = 1;
  config.cost.network_bytes_per_second = 1e9;
  config.cost.network_seconds_per_transfer = 0;
  EXPECT_EQ(ends(1e9, false).first, kBytes + kForward);
}

/// Two ranks, each with one of two kv heads; transfers of one byte a nanosecond.
TEST(Timeline, WhatReturnsWholeTravelsInItsOwnType) {
  PlanConfig config{.num_ranks = 2,
                    .num_heads_q = 2,
                    .num_heads_kv = 2,
                    .head_dim_qk = 8,
                    .head_dim_v = 16,
                    .overlap_degree = 1,
                    .work = WorkMode::Heads};
  config.cost = {.bytes_per_second = 1e9,
                 .memory_bytes_per_second = 1e30,
                 .seconds_per_transfer = 0,
                 .seconds_per_launch = 0};
  const Mask mask{64, 64, {band_slice({0, 64}, {0, 64}, MaskType::Full)}};
  const Plan plan = make_plan(mask, config);
  ASSERT_EQ(plan.num_head_shares, 2);
  constexpr std::int64_t kRows = 32;
  const auto returned_ns = [&](bool is_backward, Role role) {
    const std::vector<StepTime> times = predict_times(plan, PlanLoads(plan), is_backward)[0].steps;
    const std::vector<Step>& steps = is_backward ? plan.ranks[0].backward : plan.ranks[0].forward;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (steps[i].kind != StepKind::Exchange) continue;
      const Exchange& exchange = plan.exchanges[static_cast<std::size_t>(steps[i].index)];
      if (exchange.role == role) return times[i].end_ns - times[i].begin_ns;
    }
    return std::int64_t{-1};
  };
  EXPECT_EQ(returned_ns(false, Role::Results), kRows * 16 * 2);
  EXPECT_EQ(returned_ns(true, Role::QueryGradients), kRows * 8 * 2);
  EXPECT_EQ(returned_ns(true, Role::KeyGradients), kRows * (8 + 16) * 2);
}

TEST(Timeline, EndsWhenTheReportSays) {
  RandomMaskOptions options;
  options.min_rows = 40;
  for (RandomStream& random : testing::RandomStreams(300)) {
    const Mask mask = random_mask(random, options);
    PlanConfig config{.num_ranks = random.between(1, 5), .num_heads_q = 4, .num_heads_kv = 2};
    config.overlap_degree = random.between(0, 3);
    config.stage_mode = random.chance(50) ? StageMode::Heads : StageMode::Rows;
    config.min_stage_rows = 4;
    // Rates at which launches, transfers and work all matter.
    config.cost = {.flops_per_second = 1e9, .bytes_per_second = 1e9};
    const Plan plan = make_plan(mask, config);
    std::int64_t end_ns = 0;
    for (const PassTimes& times : predict_times(plan, PlanLoads(plan), false)) {
      end_ns = std::max(end_ns, times.attends_end_ns);
    }
    SCOPED_TRACE(testing::describe(mask));
    EXPECT_EQ(static_cast<double>(end_ns) * 1e-9, plan.report.forward_seconds);
  }
}

TEST(Timeline, ReceivedQueriesAreWaitedFor) {
  const Plan plan = rectangle_plan();
  const PlanLoads loads(plan);
  EXPECT_EQ(loads.rows_in(1, plan.exchanges[1]), 32);
  EXPECT_EQ(loads.rows_in(0, plan.exchanges[2]), 32);
  const PassTimes times = predict_times(plan, loads, false)[1];
  EXPECT_GE(times.steps[4].begin_ns, times.steps[1].end_ns);
  EXPECT_GE(times.steps[5].begin_ns, times.steps[4].end_ns);
}

TEST(Timeline, AForwardEndsWhenResultsAreBack) {
  const Plan plan = rectangle_plan();
  const PlanLoads loads(plan);
  std::int64_t attends_ns = 0;
  for (const PassTimes& times : predict_times(plan, loads, false)) {
    EXPECT_EQ(times.returns_end_ns, times.steps.back().end_ns);
    attends_ns = std::max(attends_ns, times.attends_end_ns);
  }
  const PlanTimes times = predict_plan(plan, loads);
  EXPECT_GT(times.forward_ns, attends_ns);
  EXPECT_EQ(static_cast<double>(times.forward_ns) * 1e-9, plan.report.forward_seconds);
  EXPECT_EQ(static_cast<double>(times.backward_ns) * 1e-9, plan.report.backward_seconds);
}

/// Four ranks with 16 rows each, of which all see all.
Plan node_plan(std::int32_t devices_per_node) {
  PlanConfig config{.num_ranks = 4,
                    .num_heads_q = 1,
                    .num_heads_kv = 1,
                    .head_dim_qk = 8,
                    .head_dim_v = 8,
                    .element_bytes = 4,
                    .overlap_degree = 1,
                    .devices_per_node = devices_per_node};
  config.cost = {.bytes_per_second = 1e9,
                 .seconds_per_transfer = 1e-6,
                 .network_bytes_per_second = 1e8,
                 .network_seconds_per_transfer = 3e-6};
  const Mask mask{64, 64, {band_slice({0, 64}, {0, 64}, MaskType::Full)}};
  const Placement placement = placement_from_chunks(64, 16, 4, {0, 1, 2, 3});
  return make_plan_on(mask, config, placement, placement);
}

TEST(Timeline, RowsBetweenNodesTakeTheNetworkAndAreHandedOnBehindIt) {
  constexpr std::int64_t kRun = 16 * 16 * 4;  // bytes of one rank's rows
  const auto exchange_ns = [](const Plan& plan) {
    return predict_times(plan, PlanLoads(plan), false)[0].steps[0].end_ns;
  };
  constexpr std::int64_t kLaunches = 10'000;
  EXPECT_EQ(exchange_ns(node_plan(0)), 3 * kRun + 3'000 + kLaunches);
  // One run crosses, beside one of the node; then the other rank's run is handed on.
  EXPECT_EQ(exchange_ns(node_plan(2)), 10 * kRun + 3'000 + kRun + 1'000 + kLaunches);
  // Straight, two runs cross.
  EXPECT_EQ(exchange_ns(node_plan(1)), 30 * kRun + 9'000 + kLaunches);
}

TEST(Timeline, AGatheredStepIsWhatARankIsPredictedToTake) {
  PlanConfig config{.num_ranks = 4, .num_heads_q = 8, .num_heads_kv = 4, .overlap_degree = 0};
  const Mask mask{4096, 4096, {band_slice({0, 4096}, {0, 4096}, MaskType::Full)}};
  const Placement rows = place(mask, 4, config.placement);
  for (const double bytes_per_second : {1e9, 1e11, 1e13}) {
    config.cost.bytes_per_second = bytes_per_second;
    const Plan plan = make_plan_on(mask, config, rows, rows);
    const PlanLoads loads(plan);
    const LinkTraffic& links = loads.traffic(1, Space::Keys, 1).inside;
    ASSERT_EQ(links.rows_in, 3072);
    ASSERT_EQ(links.rows_out, 3072);
    const PassTimes forward = predict_times(plan, loads, false)[1];
    const auto backward = static_cast<double>(predict_times(plan, loads, true)[1].end_ns);
    const double ns = GatheredStep(config).ns(loads.rank_area(1), links.rows_in);
    // A quarter of the keys are own ones: half of their work may begin before others come.
    const double own_ns = static_cast<double>(loads.rank_area(1)) / 4 * 2 * 8 * 256 /
                          config.cost.flops_per_second * 1e9;
    const auto predicted = static_cast<double>(forward.attends_end_ns) + backward;
    EXPECT_GE(ns, predicted - 8);
    EXPECT_LE(ns, predicted + own_ns / 2 + 8);
  }
}

TEST(Timeline, OneDegreeIsChosenFromPlansOfDegreeZeroAndOne) {
  std::size_t num_chosen[3] = {};  // 0, 1, more
  for (RandomStream& random : testing::RandomStreams(400)) {
    const Plan plan = random_plan(random);
    PlanConfig config = plan.config;
    config.cost = slow_cost(random);
    const auto chosen_from = [&](std::int32_t degree) {
      config.overlap_degree = degree;
      const Plan made = make_plan_on(plan.mask, config, plan.placement_q, plan.placement_k);
      return choose_degree(made, PlanLoads(made));
    };
    const std::int32_t chosen = chosen_from(0);
    EXPECT_EQ(chosen, chosen_from(1));
    ++num_chosen[std::min(chosen, 2)];
  }
  for (const std::size_t count : num_chosen) EXPECT_GT(count, 20u);
}

}  // namespace
}  // namespace magi::planner
