// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "magi/plan.hpp"
#include "plan/cost/bound.hpp"
#include "plan/plan_support.hpp"
#include "support/random_streams.hpp"

namespace magi {
namespace {

/// With own keys and one remote stage.
PlanConfig config_of(std::int32_t num_ranks) {
  PlanConfig config{.overlap_degree = 1};
  config.num_ranks = num_ranks;
  config.num_heads_q = 8;
  config.num_heads_kv = 2;
  return config;
}

std::int64_t bound_rows(const Mask& mask, std::int32_t num_ranks) {
  // Equal rows; area left open.
  return planner::lower_bound_rows(
      mask, {.num_ranks = num_ranks, .max_rows = mask.rows_q / num_ranks, .max_area = area(mask)});
}

TEST(LowerBound, OneCausalDocumentOfEqualShardsIsTight) {
  // Contiguous shards move 1 + 2 + ... + (P - 1) shards, and the bound says no less.
  for (const std::int32_t num_ranks : {2, 4, 8}) {
    const std::int32_t shard = 64;
    const Mask mask = causal(shard * num_ranks);
    const std::int64_t contiguous = std::int64_t{shard} * num_ranks * (num_ranks - 1) / 2;
    EXPECT_LE(bound_rows(mask, num_ranks), contiguous);
    EXPECT_GE(bound_rows(mask, num_ranks), contiguous - num_ranks);
  }
}

TEST(LowerBound, FullAttentionMovesEverythingEverywhere) {
  const Mask mask{256, 256, {band_slice({0, 256}, {0, 256}, MaskType::Full)}};
  EXPECT_EQ(bound_rows(mask, 4), 3 * 256);
}

TEST(LowerBound, DocumentsThatFitOnARankMayMoveNothing) {
  Mask mask{256, 256, {}};
  for (std::int32_t row = 0; row < 256; row += 64) {
    mask.slices.push_back(band_slice({row, row + 64}, {row, row + 64}, MaskType::Causal));
  }
  EXPECT_EQ(bound_rows(mask, 4), 0);
}

TEST(LowerBound, AnAreaLimitForcesADocumentApart) {
  // 64 rows have 2080 pairs. The rank with the last row sees all 64 keys; with 1040 pairs it holds
  // at most 44 rows (64 + 44 * 43 / 2 = 1010, 64 + 45 * 44 / 2 = 1054), so 20 keys come to it.
  EXPECT_EQ(
      planner::lower_bound_rows(causal(64), {.num_ranks = 2, .max_rows = 64, .max_area = 1040}),
      20);
}

TEST(LowerBound, DoubledSlicesCountOnce) {
  Mask doubled = causal(256);
  doubled.slices.push_back(doubled.slices[0]);
  EXPECT_EQ(bound_rows(doubled, 4), bound_rows(causal(256), 4));
}

TEST(LowerBound, HoldsForEverySmallPlacementWithinTheLimits) {
  // All 64 placements of 6 rows on 2 ranks: the bound for one's limits is not above the traffic of
  // any that keeps them.
  struct Case {
    std::int64_t rows, area, bytes, bound;
  };
  for (RandomStream& random : testing::RandomStreams(60)) {
    RandomMaskOptions options;
    options.min_rows = 6;
    options.max_rows_q = options.max_rows_k = 6;
    options.max_slices = 4;
    options.is_square = true;
    const Mask mask = random_mask(random, options);
    std::vector<Case> cases;
    for (int code = 0; code < 64; ++code) {
      std::vector<std::int32_t> chunk_rank;
      for (int bit = 0; bit < 6; ++bit) chunk_rank.push_back((code >> bit) & 1);
      const Placement placement = placement_from_chunks(6, 1, 2, chunk_rank);
      const PlanReport report = make_plan_on(mask, config_of(2), placement, placement).report;
      cases.push_back({*std::max_element(report.rank_rows.begin(), report.rank_rows.end()),
                       *std::max_element(report.rank_area.begin(), report.rank_area.end()),
                       report.total_bytes, report.lower_bound_bytes});
    }
    for (const Case& a : cases) {
      for (const Case& b : cases) {
        if (b.rows > a.rows || b.area > a.area) continue;
        EXPECT_LE(a.bound, b.bytes);
      }
    }
  }
}

TEST(Memory, CountsReceivedRowsAndTheirGradients) {
  const Plan plan = make_plan(causal(256), config_of(4));
  for (std::size_t r = 0; r < 4; ++r) {
    // 2 kv heads of k and v, 128 elements each, in bf16 and as float32 sums.
    EXPECT_EQ(plan.report.rank_memory[r], plan.report.remote_rows[r] * 2 * 256 * (2 + 4));
  }
  PlanConfig gathering = config_of(4);
  gathering.overlap_degree = 0;
  const PlanReport gathered = make_plan(causal(256), gathering).report;
  for (std::size_t r = 0; r < 4; ++r) {
    const std::int64_t copied = gathered.remote_rows[r] > 0 ? gathered.rank_rows[r] : 0;
    EXPECT_EQ(gathered.rank_memory[r], (gathered.remote_rows[r] + copied) * 2 * 256 * (2 + 4));
  }
}

TEST(PredictedTime, MoreBandwidthIsNeverSlower) {
  PlanConfig config = config_of(4);
  config.cost.bytes_per_second = 1e9;
  const Plan slow = make_plan(causal(4096), config);
  config.cost.bytes_per_second = 1e12;
  const Plan fast = make_plan(causal(4096), config);
  EXPECT_LT(fast.report.forward_seconds, slow.report.forward_seconds);
  EXPECT_LT(fast.report.exposed_comm_seconds, slow.report.exposed_comm_seconds);
  EXPECT_LT(fast.report.backward_seconds, slow.report.backward_seconds);
}

TEST(PredictedTime, StaysFiniteForTheSlowestMachineAllowed) {
  const std::int32_t rows = 1 << 29;
  const Mask mask{rows, rows, {band_slice({0, rows}, {0, rows}, MaskType::Causal)}};
  PlanConfig config{.num_ranks = 2, .num_heads_q = 64, .num_heads_kv = 2, .overlap_degree = 2};
  config.cost = {
      .flops_per_second = 1e-300, .backward_flops_per_second = 1e-300, .bytes_per_second = 1e-300};
  const PlanReport report = make_plan(mask, config).report;
  EXPECT_GT(report.forward_seconds, 1e5);
  EXPECT_GE(report.backward_seconds, report.forward_seconds);
  EXPECT_GE(report.exposed_comm_seconds, 0.0);
}

TEST(PredictedTime, DegreeZeroHidesWhatComesInANode) {
  PlanConfig config = config_of(4);
  config.cost.bytes_per_second = 1e9;
  config.overlap_degree = 0;
  const PlanReport coming = make_plan(causal(4096), config).report;
  config.cost.network_bytes_per_second = 1e9;
  config.devices_per_node = 1;
  const PlanReport waiting = make_plan(causal(4096), config).report;
  config.devices_per_node = 0;
  config.overlap_degree = 1;
  const PlanReport staged = make_plan(causal(4096), config).report;
  EXPECT_LT(coming.forward_seconds, staged.forward_seconds);
  EXPECT_LT(coming.backward_seconds, staged.backward_seconds);
  EXPECT_GT(coming.exposed_comm_seconds, 0.0);
  EXPECT_GE(waiting.exposed_comm_seconds, staged.exposed_comm_seconds);
}

TEST(PredictedTime, TheDefaultDegreeIsTheBestOfAllByItsOwnForecast) {
  PlanConfig config{.num_ranks = 4, .num_heads_q = 8, .num_heads_kv = 8};
  ASSERT_FALSE(config.overlap_degree.has_value());
  config.cost.bytes_per_second = 2e9;
  config.cost.flops_per_second = 1e12;
  const Mask mask = causal(16384);
  const double chosen = make_plan(mask, config).report.forward_seconds;
  double best = chosen;
  for (std::int32_t degree = 1; degree <= 8; ++degree) {
    config.overlap_degree = degree;
    best = std::min(best, make_plan(mask, config).report.forward_seconds);
  }
  EXPECT_EQ(chosen, best);
}

TEST(Describe, NamesWhatAPersonAsksFor) {
  const Plan plan = make_plan(causal(4096), config_of(4));
  const std::string text = describe(plan);
  for (const char* word : {"4096 x 4096", "balance", "ring", "lower bound",
                           "own keys, then 1 stage", "memory", "predicted", "digest", "rank"}) {
    EXPECT_NE(text.find(word), std::string::npos) << word << "\n" << text;
  }
  EXPECT_NE(describe(make_plan(causal(8192), config_of(32))).find("16 more"), std::string::npos);
}

}  // namespace
}  // namespace magi
