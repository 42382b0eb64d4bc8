// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "magi/mask_builders.hpp"
#include "plan/cost/timeline.hpp"
#include "plan/place_rows.hpp"
#include "plan/plan_support.hpp"
#include "support/random_streams.hpp"

namespace magi::planner {
namespace {

PlanConfig config_of(std::int32_t num_ranks) {
  PlanConfig config{.num_ranks = num_ranks, .num_heads_q = 32, .num_heads_kv = 32};
  config.placement.chunk_size = 512;
  config.overlap_degree = 0;
  return config;
}

/// What the search makes small, from the tables of a plan.
double objective_of(const Plan& plan) {
  const PlanLoads loads(plan);
  const GatheredStep step(plan.config);
  double total = 0.0;
  for (std::int32_t rank = 0; rank < plan.config.num_ranks; ++rank) {
    const LinkTraffic& links = loads.traffic(rank, Space::Keys, 1).inside;
    const double ns = step.ns(loads.rank_area(rank), std::max(links.rows_in, links.rows_out));
    total += std::pow(ns * 1e-7, 16);
  }
  return total;
}

std::vector<std::int32_t> chunk_counts(const Placement& placement) {
  std::vector<std::int32_t> counts;
  for (std::int32_t rank = 0; rank < placement.num_ranks; ++rank) {
    counts.push_back(static_cast<std::int32_t>(placement.chunks_of(rank).size()));
  }
  return counts;
}

TEST(PlaceForStep, ExchangesChunksWhereTheSlowestRanksGain) {
  for (RandomStream& random : testing::RandomStreams(12)) {
    const PlanConfig config = config_of(random.between(2, 12));
    const Mask mask = random_documents(random, random.between(16384, 65536), 128);
    const Placement start = place(mask, config.num_ranks, config.placement);
    const Placement placed = place_for_step(mask, config, start);
    EXPECT_EQ(placed, place_for_step(mask, config, start));
    EXPECT_EQ(chunk_counts(placed), chunk_counts(start));
    const double before = objective_of(make_plan_on(mask, config, start, start));
    const double after = objective_of(make_plan_on(mask, config, placed, placed));
    EXPECT_LE(after, before * (1.0 + 1e-9));
  }
}

TEST(PlaceForStep, SharesOutWhatTheBusiestLinkMoves) {
  // One long document and many short ones: gathered on few ranks, it moves few rows in all, and
  // these ranks are slow.
  std::vector<std::int32_t> ends{0, 24576};
  while (ends.back() < 65536) ends.push_back(ends.back() + 1024);
  const Mask mask = mask_from_cu_seqlens(ends, ends, {.is_causal = true});
  const PlanConfig config = config_of(8);
  const Placement start = place(mask, 8, config.placement);
  const Placement placed = place_for_step(mask, config, start);
  const Plan before = make_plan_on(mask, config, start, start);
  const Plan after = make_plan_on(mask, config, placed, placed);
  EXPECT_TRUE(check_plan(after).empty());
  EXPECT_LT(step_seconds(after), 0.95 * step_seconds(before));
}

TEST(PlaceForStep, LeavesWhatItCannotJudge) {
  RandomStream random(3);
  const Mask mask = random_documents(random, 32768, 128);
  PlanConfig config = config_of(4);
  const Placement start = place(mask, 4, config.placement);
  EXPECT_NE(place_for_step(mask, config, start), start);
  config.devices_per_node = 2;
  EXPECT_EQ(place_for_step(mask, config, start), start);
  config = config_of(1);
  const Placement one = place(mask, 1, config.placement);
  EXPECT_EQ(place_for_step(mask, config, one), one);
  const Mask nothing{4096, 4096, {}};
  const Placement rows = place(nothing, 4, config.placement);
  EXPECT_EQ(place_for_step(nothing, config_of(4), rows), rows);
}

TEST(PlaceForStep, RandomMasksStayWhole) {
  for (RandomStream& random : testing::RandomStreams(60)) {
    RandomMaskOptions options;
    options.is_square = true;
    const Mask mask = random_mask(random, options);
    PlanConfig config = random_config(random);
    config.devices_per_node = 0;
    const Placement start = random_placement(random, mask.rows_q, config.num_ranks);
    const Placement placed = place_for_step(mask, config, start);
    EXPECT_EQ(chunk_counts(placed), chunk_counts(start));
    EXPECT_TRUE(check_plan(make_plan_on(mask, config, placed, placed)).empty());
  }
}

}  // namespace
}  // namespace magi::planner
