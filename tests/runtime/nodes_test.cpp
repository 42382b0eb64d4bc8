// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "plan/cost/report.hpp"
#include "runtime/block_plan.hpp"
#include "runtime/masks.hpp"
#include "runtime/pipeline.hpp"

// Plans whose rows go by node give what plans give whose rows go straight.
namespace magi::testing {
namespace {

constexpr CaseSizes kSizes{.heads_q = 4, .heads_kv = 2, .dim_qk = 8, .dim_v = 16};

/// The plan with another node size, its rows by node if that has several and else straight.
Plan on_nodes(Plan plan, std::int32_t devices_per_node) {
  plan.config.devices_per_node = devices_per_node;
  for (Exchange& exchange : plan.exchanges) exchange.hop = has_nodes(plan.config) ? 1 : 0;
  plan.report = planner::make_report(plan);
  plan.digest = plan_digest(plan);
  return plan;
}

PipelineRun run_plan(const AttentionCase& test, const Plan& plan) {
  return run_pipeline(test, std::make_shared<const Plan>(plan));
}

/// What each rank sent to each other one in the forward is what the report says.
void expect_bytes_of_report(const Plan& plan, const PipelineRun& run) {
  std::vector<std::int64_t> sent;
  for (const CommCounters& counters : run.after_forward) {
    sent.insert(sent.end(), counters.bytes_to_peer.begin(), counters.bytes_to_peer.end());
  }
  EXPECT_EQ(sent, plan.report.pair_bytes);
}

struct Bytes {
  std::int64_t across_nodes = 0, all = 0;
};

Bytes bytes_of(const PipelineRun& run) {
  Bytes bytes;
  for (std::size_t a = 0; a < run.after_backward.size(); ++a) {
    for (std::size_t b = 0; b < run.after_backward.size(); ++b) {
      bytes.all += run.after_backward[a].bytes_to_peer[b];
      if (a / 4 != b / 4) bytes.across_nodes += run.after_backward[a].bytes_to_peer[b];
    }
  }
  return bytes;
}

struct Grid {
  std::int32_t num_ranks = 4;
  std::int32_t devices_per_node = 2;
};
constexpr Grid kGrids[] = {{4, 2}, {8, 4}, {8, 2}, {5, 2}, {7, 3}};

TEST(Nodes, KeysByNodeGiveTheBitsOfStraightOnesInTheForward) {
  for (const auto& [name, mask] : masks_of_all_kinds(132)) {
    const AttentionCase test = make_case(mask, DType::Float64, kSizes);
    for (const Grid& grid : kGrids) {
      for (const std::int32_t degree : {0, 1, 3}) {
        SCOPED_TRACE(::testing::Message() << name << ", " << grid.num_ranks << " ranks in nodes of "
                                          << grid.devices_per_node << ", degree " << degree);
        PlanConfig config = plan_config(test, grid.num_ranks);
        config.overlap_degree = degree;
        const Plan straight = make_plan(mask, config);
        const Plan by_node = on_nodes(straight, grid.devices_per_node);
        expect_sound(by_node);
        const PipelineRun run = run_plan(test, by_node);
        const PipelineRun expected = run_plan(test, straight);
        EXPECT_TRUE(run.forward == expected.forward);
        EXPECT_EQ(run.gradients.dq, expected.gradients.dq);
        expect_backward_close(test, dense_forward(test.dense, test.counts()), run.gradients);
        expect_bytes_of_report(by_node, run);
        EXPECT_TRUE(run == run_plan(test, by_node)) << "another run gave other bits";
        if (HasFailure()) return;
      }
    }
  }
}

TEST(Nodes, EveryTypeIsSummedInsideTheNode) {
  const Mask mask = masks_of_all_kinds(120)[1].mask;
  for (const DType dtype : {DType::Float32, DType::BFloat16, DType::Float16}) {
    const AttentionCase test = make_case(mask, dtype, kSizes);
    PlanConfig config = plan_config(test, 4);
    config.devices_per_node = 2;
    expect_pipeline_close(test, shared_plan(mask, config));
  }
}

/// A rank other than the owner of its queries attends to every block.
Plan moving_plan(const AttentionCase& test, std::int32_t num_ranks) {
  std::vector<std::int32_t> chunk_rank;
  for (std::int32_t chunk = 0; chunk < 2 * num_ranks; ++chunk) {
    chunk_rank.push_back(std::min(chunk, 2 * num_ranks - 1 - chunk));
  }
  const Placement rows = placement_from_chunks(test.mask.rows_q, test.mask.rows_q / (2 * num_ranks),
                                               num_ranks, chunk_rank);
  const BlockPlanOptions options{.work = [&](std::int32_t q, std::int32_t k) -> BlockWork {
                                   return {.rank = (q + 2 * k + 1) % num_ranks};
                                 },
                                 .heads = {{0, 1}, {1, 2}}};
  return make_block_plan(test.mask, plan_config(test, num_ranks), rows, rows, options);
}

TEST(Nodes, QueriesGoByNodeAndTheirResultsAreMergedThere) {
  for (const auto& [name, mask] : masks_of_all_kinds(128)) {
    for (const Grid& grid : {Grid{4, 2}, Grid{8, 4}}) {
      SCOPED_TRACE(::testing::Message() << name << ", " << grid.num_ranks << " ranks");
      const AttentionCase test =
          with_all_options(make_case(mask, DType::Float64, kSizes), SinkLayout::SinkHead);
      const Plan plan = on_nodes(moving_plan(test, grid.num_ranks), grid.devices_per_node);
      expect_sound(plan);
      ASSERT_GT(plan.ranks[0].q.segments.size(), 1u);
      expect_pipeline_close(test, std::make_shared<const Plan>(plan));
      if (HasFailure()) return;
    }
  }
}

TEST(Nodes, QueriesThatThePlannerMovesGoByNodeToo) {
  const Mask mask{256, 256, {band_slice({0, 256}, {0, 256}, MaskType::Causal)}};
  const AttentionCase test = make_case(mask, DType::Float64, kSizes);
  for (const std::int32_t degree : {1, 2}) {
    PlanConfig config = plan_config(test, 8);
    config.work = WorkMode::Queries;
    config.overlap_degree = degree;
    config.devices_per_node = 4;
    const auto plan = shared_plan(mask, config);
    expect_sound(*plan);
    EXPECT_TRUE(is_by_node(*plan, Space::Queries, 1) || is_by_node(*plan, Space::Keys, 1));
    expect_pipeline_close(test, plan);
    EXPECT_LT(bytes_of(run_plan(test, *plan)).across_nodes,
              bytes_of(run_plan(test, on_nodes(*plan, 0))).across_nodes);
  }
}

TEST(Nodes, SharedHeadsGoByNodeToo) {
  int num_by_node = 0;
  for (const auto& [name, mask] : masks_of_all_kinds(128)) {
    for (const Grid& grid : {Grid{4, 2}, Grid{8, 4}, Grid{8, 2}}) {
      for (const std::int32_t num_shares : {2, 4}) {
        SCOPED_TRACE(::testing::Message() << name << ", " << grid.num_ranks << " ranks in nodes of "
                                          << grid.devices_per_node << ", " << num_shares);
        const AttentionCase test =
            with_all_options(make_case(mask, DType::Float64, {4, 4, 8, 16}), SinkLayout::SinkHead);
        PlanConfig config = plan_config(test, grid.num_ranks);
        config.work = WorkMode::Heads;
        config.head_shares = num_shares;
        config.devices_per_node = grid.devices_per_node;
        const auto plan = shared_plan(mask, config);
        expect_sound(*plan);
        num_by_node += std::ranges::count(plan->exchanges, 1, &Exchange::hop) > 0 ? 1 : 0;
        expect_pipeline_close(test, plan);
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GT(num_by_node, 3);
}

/// Each node's bytes across are those of its distinct rows; all rows, those of straight plans.
TEST(Nodes, FewerBytesCrossAndNoneMoreMove) {
  const Mask mask{256, 256, {band_slice({0, 256}, {0, 256}, MaskType::Full)}};
  const AttentionCase test = make_case(mask, DType::Float32, kSizes);
  const Plan straight = make_plan(mask, plan_config(test, 8));
  const Bytes hopping = bytes_of(run_plan(test, on_nodes(straight, 4)));
  const Bytes flat = bytes_of(run_plan(test, straight));
  EXPECT_EQ(4 * hopping.across_nodes, flat.across_nodes) << "every rank needs every row";
  EXPECT_EQ(hopping.all, flat.all);
}

}  // namespace
}  // namespace magi::testing
