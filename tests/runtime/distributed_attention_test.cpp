// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "runtime/masks.hpp"
#include "runtime/pipeline.hpp"

namespace magi::testing {
namespace {

TEST(DistributedAttention, EqualsDenseAttentionForEveryGroupSizeAndMask) {
  for (const auto& [name, mask] : masks_of_all_kinds(121)) {
    const AttentionCase test = make_case(mask, DType::Float32, {4, 2}, 1);
    for (std::int32_t num_ranks = 1; num_ranks <= 8; ++num_ranks) {
      SCOPED_TRACE(name + ", ranks " + std::to_string(num_ranks));
      expect_pipeline_close(test, shared_plan(mask, plan_config(test, num_ranks)));
    }
  }
}

TEST(DistributedAttention, EqualsDenseAttentionForEveryOverlapDegree) {
  const Mask mask = masks_of_all_kinds(130)[5].mask;
  for (const CaseSizes heads : {CaseSizes{8, 8}, CaseSizes{8, 2}, CaseSizes{4, 1}}) {
    const AttentionCase test = make_case(mask, DType::Float64, heads, 2);
    for (const StageMode mode : {StageMode::Heads, StageMode::Rows}) {
      for (const std::optional<std::int32_t> degree : {std::optional(0), {1}, {2}, {4}, {}}) {
        SCOPED_TRACE(::testing::Message()
                     << "heads " << heads.heads_q << "/" << heads.heads_kv << ", mode "
                     << static_cast<int>(mode) << ", degree " << degree.value_or(-1));
        PlanConfig config = plan_config(test, 4);
        config.stage_mode = mode;
        config.overlap_degree = degree;
        expect_pipeline_close(test, shared_plan(mask, config));
      }
    }
  }
}

TEST(DistributedAttention, EqualsDenseAttentionInEveryTypeWithSinkCapAndLseGradient) {
  const Mask mask = masks_of_all_kinds(120)[5].mask;
  for (const DType dtype : {DType::Float64, DType::Float32, DType::BFloat16, DType::Float16}) {
    for (const SinkLayout layout : {SinkLayout::SinkHead, SinkLayout::RowSinkHead}) {
      for (const DType result : {dtype, DType::Float32}) {
        if (dtype == DType::Float64 && result != dtype) continue;
        AttentionCase test = make_case(mask, dtype, {4, 2}, 3);
        test.result_dtype = result;
        test.dense.num_sinks = 3;
        test.dense.params = {.softmax_scale = 0.3, .softcap = 2.0, .sink_layout = layout};
        test.dlse.resize(1);
        test.layout = Layout::Padded;
        RandomStream random(4);
        draw_values(random, test);
        PlanConfig config = plan_config(test, 3);
        config.overlap_degree = 2;
        expect_pipeline_close(test, shared_plan(mask, config));
      }
    }
  }
}

TEST(DistributedAttention, EqualsDenseAttentionOnUnevenAndTolerantPlacements) {
  for (const auto& [name, mask] : masks_of_all_kinds(127)) {
    SCOPED_TRACE(name);
    const AttentionCase test = make_case(mask, DType::Float32, {2, 2}, 5);
    PlanConfig config = plan_config(test, 3);
    config.placement.uneven_shard = true;
    expect_pipeline_close(test, shared_plan(mask, config));
    config.placement.uneven_shard = false;
    config.placement.token_tolerance = 0.5;
    expect_pipeline_close(test, shared_plan(mask, config));
  }
}

TEST(DistributedAttention, RanksWithoutRowsTakePart) {
  const Mask mask = masks_of_all_kinds(200)[5].mask;
  AttentionCase test = make_case(mask, DType::Float32, {4, 2}, 6);
  test.dense.num_sinks = 2;
  RandomStream random(6);
  draw_values(random, test);
  const Placement placement = placement_from_chunks(200, 50, 4, {0, 2, 2, 0});
  for (const std::int32_t degree : {0, 1, 2}) {
    PlanConfig config = plan_config(test, 4);
    config.overlap_degree = degree;
    expect_pipeline_close(
        test, std::make_shared<const Plan>(make_plan_on(mask, config, placement, placement)));
  }
}

TEST(DistributedAttention, CrossAttentionPlacesQueriesAndKeysApart) {
  for (const auto& [rows_q, rows_k] : {std::pair{150, 61}, {40, 220}, {1, 64}}) {
    AttentionCase test;
    test.mask = Mask{.rows_q = rows_q, .rows_k = rows_k};
    test.mask.slices = {band_slice({0, rows_q}, {5, rows_k}, MaskType::Full),
                        band_slice({0, rows_q}, {0, 5}, MaskType::Causal)};
    test = make_case(test.mask, DType::Float32, {4, 2}, 8);
    PlanConfig config = plan_config(test, rows_q == 1 ? 1 : 3);
    config.placement_k = PlacementConfig{.uneven_shard = true};
    expect_pipeline_close(test, shared_plan(test.mask, config));
  }
}

TEST(DistributedAttention, EqualsDenseAttentionOnRandomCases) {
  constexpr std::uint64_t kSeed = 20261121;
  RandomStream random(kSeed);
  for (int trial = 0; trial < 40; ++trial) {
    SCOPED_TRACE(::testing::Message() << "seed " << kSeed << ", trial " << trial);
    const DType dtypes[] = {DType::Float64, DType::Float32, DType::BFloat16, DType::Float16};
    const AttentionCase test = random_case(
        random, dtypes[random.between(0, 3)],
        {.min_rows = 8, .max_rows_q = 80, .max_rows_k = 80, .is_square = random.chance(70)});
    const std::int32_t largest = std::min({8, test.mask.rows_q, test.mask.rows_k});
    PlanConfig config = plan_config(test, random.between(1, largest));
    config.placement.uneven_shard = random.chance(50);
    config.placement.chunk_size = random.between(1, 16);
    config.stage_mode = random.chance(50) ? StageMode::Heads : StageMode::Rows;
    config.overlap_degree = random.between(0, 4);
    SCOPED_TRACE(::testing::Message()
                 << "ranks " << config.num_ranks << ", degree " << *config.overlap_degree
                 << ", uneven " << config.placement.uneven_shard);
    expect_pipeline_close(test, shared_plan(test.mask, config));
  }
}

TEST(DistributedAttention, StagesByHeadsChangeNoBit) {
  AttentionCase test = make_case(masks_of_all_kinds(220)[5].mask, DType::BFloat16, {8, 4}, 9);
  PlanConfig config = plan_config(test, 4);
  config.stage_mode = StageMode::Heads;
  const PipelineRun once = run_pipeline(test, shared_plan(test.mask, config));
  for (const std::int32_t degree : {2, 4}) {
    config.overlap_degree = degree;
    EXPECT_TRUE(run_pipeline(test, shared_plan(test.mask, config)) == once) << degree;
  }
}

TEST(DistributedAttention, RepeatsBitForBit) {
  AttentionCase test = make_case(masks_of_all_kinds(220)[0].mask, DType::Float32, {4, 1}, 10);
  PlanConfig config = plan_config(test, 5);
  config.stage_mode = StageMode::Rows;
  config.overlap_degree = 3;
  const auto plan = shared_plan(test.mask, config);
  const PipelineRun once = run_pipeline(test, plan);
  for (int repeat = 0; repeat < 5; ++repeat) EXPECT_TRUE(run_pipeline(test, plan) == once);
}

TEST(DistributedAttention, MovesTheBytesThatThePlanReports) {
  for (const auto& [name, mask] : masks_of_all_kinds(256)) {
    for (const std::int32_t degree : {0, 1, 2}) {
      SCOPED_TRACE(name + ", degree " + std::to_string(degree));
      const AttentionCase test = make_case(mask, DType::BFloat16, {4, 2}, 11);
      PlanConfig config = plan_config(test, 4);
      config.overlap_degree = degree;
      const auto plan = shared_plan(mask, config);
      const PipelineRun run = run_pipeline(test, plan);
      for (std::size_t from = 0; from < 4; ++from) {
        for (std::size_t to = 0; to < 4; ++to) {
          const std::int64_t cast = plan->report.pair_bytes[from * 4 + to];
          const std::int64_t reduce = plan->report.pair_bytes[to * 4 + from] * 2;  // float32
          EXPECT_EQ(run.after_forward[from].bytes_to_peer[to], cast);
          EXPECT_EQ(run.after_backward[from].bytes_to_peer[to], 2 * cast + reduce);
        }
      }
    }
  }
}

TEST(DistributedAttention, OneRankNeedsNoCommunication) {
  const AttentionCase test = make_case(masks_of_all_kinds(200)[1].mask, DType::Float32, {4, 2}, 12);
  for (const std::int32_t degree : {0, 1, 4}) {
    PlanConfig config = plan_config(test, 1);
    config.overlap_degree = degree;
    const PipelineRun run = run_pipeline(test, shared_plan(test.mask, config));
    EXPECT_EQ(run.after_backward[0].casts, 0);
    EXPECT_EQ(run.after_backward[0].reduces, 0);
  }
}

TEST(DistributedAttention, SeveralMasksShareOnePlacementAndTwoGroupsOneProcess) {
  const auto masks = masks_of_all_kinds(200);
  const AttentionCase first = make_case(masks[1].mask, DType::Float32, {4, 2}, 13);
  AttentionCase second = first;
  second.mask = masks[3].mask;
  const auto causal = shared_plan(first.mask, plan_config(first, 3));
  const auto window = std::make_shared<const Plan>(
      make_plan_on(second.mask, plan_config(second, 3), causal->placement_q, causal->placement_k));
  const auto group_a = make_thread_group(3);
  const auto group_b = make_thread_group(3);
  PipelineRun runs[] = {empty_run(first, 3), empty_run(second, 3)};
  run_ranks(3, [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    run_rank(first, causal, *group_a[rank], runs[0]);
    run_rank(second, window, *group_b[rank], runs[1]);
  });
  EXPECT_TRUE(runs[0] == run_pipeline(first, causal));
  EXPECT_TRUE(runs[1] == run_pipeline(second, window));
  expect_forward_close(first, runs[0].forward);
  expect_forward_close(second, runs[1].forward);
}

}  // namespace
}  // namespace magi::testing
