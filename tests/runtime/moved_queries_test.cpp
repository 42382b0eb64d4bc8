// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <memory>

#include "plan/travel/queries.hpp"
#include "runtime/masks.hpp"
#include "runtime/pipeline.hpp"

// Plans of make_plan in which queries travel, run on threads against dense float64 attention.
namespace magi::testing {
namespace {

TEST(MovedQueries, MoveTheBytesThatTheSearchCounts) {
  for (const auto& [name, mask] : masks_of_all_kinds(128)) {
    for (const std::int32_t degree : {0, 1, 2}) {
      SCOPED_TRACE(::testing::Message() << name << ", degree " << degree);
      const AttentionCase test = make_case(mask, DType::BFloat16, {4, 2});
      PlanConfig config = plan_config(test, 4);
      config.work = WorkMode::Queries;
      config.placement = {.algorithm = PlacementAlgorithm::SequentialSelect, .chunk_size = 8};
      config.overlap_degree = degree;
      const auto plan = shared_plan(mask, config);
      const planner::RowCosts costs = planner::row_costs(plan->config);
      std::int64_t counted = 0;
      for (const Transfer& t : plan->transfers) {
        if (t.src == t.dst) continue;
        counted += t.num_rows * (t.space == Space::Keys ? costs.k : costs.q);
      }
      std::int64_t moved = 0;
      for (const CommCounters& counters : run_pipeline(test, plan).after_backward) {
        for (const std::int64_t bytes : counters.bytes_to_peer) moved += bytes;
      }
      EXPECT_EQ(moved, counted);
    }
  }
}

/// Layers of one model: full and windowed attention, packed documents, a mask of all types, and
/// cross-attention to keys that lie in order too.
TEST(MovedQueries, LayersOfOtherMasksShareRowsInOrder) {
  const auto masks = masks_of_all_kinds(128);
  for (const WorkMode work : {WorkMode::Keys, WorkMode::Queries, WorkMode::Heads, WorkMode::Auto}) {
    const AttentionCase first = make_case(masks[1].mask, DType::Float64, {4, 4});
    PlanConfig config = plan_config(first, 4);
    config.work = work;
    config.placement.algorithm = PlacementAlgorithm::SequentialSelect;
    const auto plan = shared_plan(first.mask, config);
    expect_pipeline_close(first, plan);
    const auto expect_layer = [&](const Mask& mask, const Placement& keys) {
      const AttentionCase test = make_case(mask, DType::Float64, {4, 4});
      const auto layer =
          std::make_shared<const Plan>(make_plan_on(mask, config, plan->placement_q, keys));
      expect_sound(*layer);
      expect_pipeline_close(test, layer);
    };
    for (const auto& [name, mask] : masks) {
      SCOPED_TRACE(::testing::Message() << work_name(work) << ", " << name);
      expect_layer(mask, plan->placement_q);
    }
    SCOPED_TRACE(::testing::Message() << work_name(work) << ", cross-attention");
    const Mask cross{128,
                     72,
                     {band_slice({0, 50}, {0, 30}, MaskType::Full),
                      band_slice({40, 128}, {20, 72}, MaskType::Causal)}};
    expect_layer(cross, placement_from_chunks(72, 18, 4, {0, 1, 2, 3}));
  }
}

TEST(MovedQueries, AWindowOverRowsInOrderMovesHalosAlone) {
  const AttentionCase test = make_case(masks_of_all_kinds(128)[3].mask, DType::BFloat16, {4, 2});
  PlanConfig config = plan_config(test, 4);
  config.work = WorkMode::Auto;
  config.placement.algorithm = PlacementAlgorithm::SequentialSelect;
  const PipelineRun run = run_pipeline(test, shared_plan(test.mask, config));
  for (std::size_t from = 0; from < 4; ++from) {
    for (std::size_t to = 0; to < 4; ++to) {
      const std::int64_t halo = 30 * 2 * (16 + 8) * 2;  // rows, kv heads, dims, bytes
      EXPECT_EQ(run.after_forward[from].bytes_to_peer[to], to == from + 1 ? halo : 0);
    }
  }
}

TEST(MovedQueries, WhatAutoChoosesEqualsDenseAttention) {
  int num_placed = 0;
  for (const auto& [name, mask] : masks_of_all_kinds(256)) {
    for (const double bytes_per_second : {1e9, 1e11}) {
      SCOPED_TRACE(::testing::Message() << name << ", " << bytes_per_second << " bytes/s");
      const AttentionCase test = make_case(mask, DType::Float64, {4, 2});
      PlanConfig config = plan_config(test, 4);
      config.placement.chunk_size = 8;
      config.overlap_degree.reset();
      config.work = WorkMode::Auto;
      config.cost.flops_per_second = config.cost.backward_flops_per_second = 1e11;
      config.cost.bytes_per_second = bytes_per_second;
      config.cost.seconds_per_transfer = config.cost.seconds_per_launch = 1e-8;
      const auto plan = shared_plan(mask, config);
      const Placement usual = place(mask, 4, config.placement);
      num_placed += plan->placement_q != usual && plan->ranks[0].q.segments.size() == 1 ? 1 : 0;
      expect_pipeline_close(test, plan);
    }
  }
  EXPECT_GT(num_placed, 0) << "no plan whose rows were placed for the step's time";
}

}  // namespace
}  // namespace magi::testing
