// SPDX-License-Identifier: Apache-2.0
#include "runtime/head_sections.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/failing_member.hpp"
#include "runtime/masks.hpp"
#include "runtime/pipeline.hpp"
#include "support/comm_error.hpp"

namespace magi::testing {
namespace {

PlanConfig config_of(std::int32_t heads_kv, StageMode mode) {
  return {.num_ranks = 3,
          .num_heads_q = 2 * heads_kv,
          .num_heads_kv = heads_kv,
          .head_dim_qk = 8,
          .head_dim_v = 16,
          .stage_mode = mode,
          .min_stage_rows = 1};
}

std::int64_t most_bytes(const Plan& plan) {
  return *std::ranges::max_element(plan.report.rank_memory);
}

/// A plan of such stages, two of three or more in memory.
Plan plan_in_turns(const Mask& mask, std::int32_t heads_kv, StageMode mode) {
  PlanConfig config = config_of(heads_kv, mode);
  config.max_exchange_bytes = most_bytes(make_plan(mask, config)) * 3 / 4;
  Plan plan = make_plan(mask, config);
  EXPECT_EQ(plan.stages_in_flight, 2);
  return plan;
}

TEST(HeadSections, AreThoseOfStagesByHeads) {
  const Mask mask = masks_of_all_kinds(240)[1].mask;
  EXPECT_EQ(num_head_sections(make_plan(mask, config_of(4, StageMode::Heads))), 1);
  EXPECT_EQ(num_head_sections(plan_in_turns(mask, 4, StageMode::Rows)), 1);
  EXPECT_EQ(num_head_sections(plan_in_turns(mask, 3, StageMode::Heads)), 3);
  // Equal ones, as many as there are stages or more.
  PlanConfig config = config_of(8, StageMode::Heads);
  config.overlap_degree = 3;
  config.max_exchange_bytes = most_bytes(make_plan(mask, config)) - 1;
  const Plan plan = make_plan(mask, config);
  EXPECT_EQ(std::ranges::count(plan.exchanges, Role::KeysValues, &Exchange::role), 3);
  EXPECT_EQ(num_head_sections(plan), 4);
}

TEST(HeadSections, AreOneWithoutKeysThatTravelAndWithFewerHeadsThanStages) {
  Plan plan = plan_in_turns(masks_of_all_kinds(240)[1].mask, 3, StageMode::Heads);
  const auto keys = std::ranges::find(plan.exchanges, Role::KeysValues, &Exchange::role);
  const std::vector<Exchange> four(4, *keys);
  plan.exchanges.insert(plan.exchanges.end(), four.begin(), four.end());
  EXPECT_EQ(num_head_sections(plan), 1);
  plan.exchanges.clear();
  EXPECT_EQ(num_head_sections(plan), 1);
}

TEST(HeadSections, MoveWhatThePlanMoves) {
  for (const auto& [name, mask] : masks_of_all_kinds(240)) {
    PlanConfig config = config_of(4, StageMode::Heads);
    config.overlap_degree = 4;
    const Plan plan = make_plan(mask, config);
    std::vector<std::int64_t> bytes = plan_of_section(plan, 4)->report.pair_bytes;
    for (std::int64_t& pair : bytes) pair *= 4;
    EXPECT_EQ(bytes, plan.report.pair_bytes) << name;
  }
}

TEST(HeadSections, ARankThatCannotMakeThemWakesTheOthers) {
  const auto plan = std::make_shared<const Plan>(
      plan_in_turns(masks_of_all_kinds(240)[1].mask, 3, StageMode::Heads));
  const auto group = make_thread_group(3, {.deadline = std::chrono::seconds(3)});
  FailingMember failing(*group[1]);
  DistributedAttention attention(plan, failing);
  AttentionInputs inputs;
  inputs.q.device = 0;
  EXPECT_THROW(attention.forward(inputs, {}), std::bad_alloc);
  const CommError error = catch_comm_error([&] { group[0]->allgather_sync({}); });
  EXPECT_EQ(error.failure(), CommFailure::Aborted) << error.what();
}

TEST(HeadSections, TogetherEqualDenseAttention) {
  const Mask mask = masks_of_all_kinds(180)[5].mask;
  const auto plan = std::make_shared<const Plan>(plan_in_turns(mask, 3, StageMode::Heads));
  for (const SinkLayout layout : {SinkLayout::SinkHead, SinkLayout::RowSinkHead}) {
    const AttentionCase test =
        with_all_options(make_case(mask, DType::Float32, {6, 3, 8, 16}), layout);
    PipelineRun run = empty_run(test, 3);
    run_ranks(3, [&](Communicator& group) {
      TensorHome host;
      run_rank(test, plan, group, {.home = host, .num_sections = 3}, run);
    });
    expect_forward_close(test, run.forward);
    expect_backward_close(test, dense_forward(test.dense, test.counts()), run.gradients);
  }
}

}  // namespace
}  // namespace magi::testing
