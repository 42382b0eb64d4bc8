// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "magi/mask_builders.hpp"
#include "magi/runtime.hpp"

namespace magi {
namespace {

Mask causal_mask(std::int32_t rows) {
  return mask_from_window({0, rows}, {0, rows}, {.left = -1, .right = 0}, rows, rows);
}

PlanConfig config_for(std::int32_t num_ranks) { return {.num_ranks = num_ranks}; }

TEST(PlanCache, GivesTheSamePlanForEqualValues) {
  PlanCache cache(4);
  const auto plan = cache.find_or_make(causal_mask(128), config_for(2));
  EXPECT_EQ(plan, cache.find_or_make(causal_mask(128), config_for(2)));
  EXPECT_EQ(cache.size(), 1u);
  EXPECT_TRUE(*plan == make_plan(causal_mask(128), config_for(2)));
}

TEST(PlanCache, TellsEveryInputApart) {
  PlanCache cache(100);
  const Mask mask = causal_mask(128);
  std::vector<PlanConfig> configs(12, config_for(2));
  configs[1].num_ranks = 4;
  configs[2].num_heads_q = 2;
  configs[3].head_dim_qk = 64;
  configs[4].head_dim_v = 64;
  configs[5].element_bytes = 4;
  configs[6].placement.chunk_size = 4;
  configs[7].placement.algorithm = PlacementAlgorithm::MinHeap;
  configs[8].overlap_degree = 0;
  configs[9].cost.bytes_per_second = 1e9;
  configs[10].placement.seed = 43;
  configs[11].stage_mode = StageMode::Rows;
  for (const PlanConfig& config : configs) cache.find_or_make(mask, config);
  EXPECT_EQ(cache.size(), configs.size());
  Mask other = mask;
  other.slices[0].d_max = -1;
  cache.find_or_make(other, configs[0]);
  other.slices.push_back({0, 1, 0, 1});
  cache.find_or_make(other, configs[0]);
  EXPECT_EQ(cache.size(), configs.size() + 2);
}

TEST(PlanCache, ForgetsTheLeastRecentlyUsed) {
  PlanCache cache(2);
  const auto first = cache.find_or_make(causal_mask(64), config_for(2));
  const auto second = cache.find_or_make(causal_mask(96), config_for(2));
  cache.find_or_make(causal_mask(64), config_for(2));
  cache.find_or_make(causal_mask(128), config_for(2));
  EXPECT_EQ(cache.size(), 2u);
  EXPECT_EQ(cache.find_or_make(causal_mask(64), config_for(2)), first);
  EXPECT_NE(cache.find_or_make(causal_mask(96), config_for(2)), second);
}

TEST(PlanCache, PlansOnAPlacementAreKeptApart) {
  PlanCache cache(8);
  const Mask mask = causal_mask(64);
  const auto plan = cache.find_or_make(mask, config_for(2));
  const Placement halves = placement_from_chunks(64, 32, 2, {0, 1});
  const Placement swapped = placement_from_chunks(64, 32, 2, {1, 0});
  const auto on_halves = cache.find_or_make_on(mask, config_for(2), halves, halves);
  EXPECT_EQ(on_halves, cache.find_or_make_on(mask, config_for(2), halves, halves));
  EXPECT_NE(on_halves, cache.find_or_make_on(mask, config_for(2), swapped, swapped));
  EXPECT_NE(on_halves, plan);
  EXPECT_TRUE(on_halves->placement_q == halves);
}

TEST(PlanCache, ThreadsThatAskAtOnceShareOnePlan) {
  PlanCache cache(4);
  std::vector<std::shared_ptr<const Plan>> plans(8);
  {
    std::vector<std::jthread> threads;
    for (auto& plan : plans) {
      threads.emplace_back([&] { plan = cache.find_or_make(causal_mask(4096), config_for(8)); });
    }
  }
  for (const auto& plan : plans) EXPECT_EQ(plan, plans[0]);
  EXPECT_EQ(cache.size(), 1u);
}

TEST(PlanCache, AFailedPlanLeavesNoEntry) {
  PlanCache cache(4);
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_THROW(cache.find_or_make(causal_mask(64), config_for(0)), InvalidArgument);
    EXPECT_EQ(cache.size(), 0u);
  }
  PlanConfig without_number = config_for(2);
  without_number.cost.bytes_per_second = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(cache.find_or_make(causal_mask(64), without_number), InvalidArgument);
  EXPECT_EQ(cache.size(), 0u);
  EXPECT_THROW(PlanCache(0), InvalidArgument);
}

TEST(PlanCache, ClearDropsEntriesButNotPlansInUse) {
  PlanCache cache(4);
  const auto plan = cache.find_or_make(causal_mask(64), config_for(2));
  cache.clear();
  EXPECT_EQ(cache.size(), 0u);
  EXPECT_EQ(plan->config.num_ranks, 2);
  EXPECT_NE(cache.find_or_make(causal_mask(64), config_for(2)), plan);
}

}  // namespace
}  // namespace magi
