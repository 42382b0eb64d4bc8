// SPDX-License-Identifier: Apache-2.0
#include "runtime/attention_suite.hpp"

namespace magi::testing {
namespace {

/// Ranks that are threads in host memory.
struct HostRunner {
  using Fixture = ::testing::Test;
  static constexpr std::int32_t kRows = 121;
  static constexpr int kTrials = 80;
  static constexpr DType kTypes[] = {DType::Float32, DType::Float64, DType::BFloat16,
                                     DType::Float16};
  static constexpr CaseSizes kSizes{.heads_q = 4}, kOtherSizes{.heads_q = 6};
  static constexpr Layout kStrides = Layout::Padded;

  static AttentionCase make(const Mask& mask, const CaseSizes& sizes, std::uint64_t seed,
                            DType dtype) {
    return make_case(mask, dtype, sizes, seed);
  }
  static AttentionCase draw(RandomStream& random) {
    return random_case(
        random, kTypes[random.between(0, 3)],
        {.min_rows = 8, .max_rows_q = 80, .max_rows_k = 80, .is_square = random.chance(70)});
  }
  static void expect_close(const AttentionCase& test, const std::shared_ptr<const Plan>& plan) {
    expect_pipeline_close(test, plan);
  }
  static void expect_repeats(const AttentionCase& test, const std::shared_ptr<const Plan>& plan) {
    EXPECT_TRUE(run_pipeline(test, plan) == run_pipeline(test, plan));
  }
  static PipelineRun run(const AttentionCase& test, const std::shared_ptr<const Plan>& plan) {
    return run_pipeline(test, plan);
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Host, AttentionOverRanks, HostRunner);

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

TEST(DistributedAttention, StagesThatTakeTurnsChangeNoBitAndTakeLessMemory) {
  AttentionCase test = make_case(masks_of_all_kinds(1200)[1].mask, DType::BFloat16, {8, 8}, 9);
  PlanConfig config = plan_config(test, 4);
  config.stage_mode = StageMode::Heads;
  config.overlap_degree = 8;
  const auto all = shared_plan(test.mask, config);
  const std::int64_t bytes = *std::ranges::max_element(all->report.rank_memory);
  config.max_exchange_bytes = bytes / 4;
  const auto in_turns = shared_plan(test.mask, config);
  EXPECT_EQ(*std::ranges::max_element(in_turns->report.rank_memory), bytes / 4);
  const PipelineRun once = run_pipeline(test, all), run = run_pipeline(test, in_turns);
  EXPECT_TRUE(run == once);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    const std::int64_t less = all->report.rank_memory[rank] - in_turns->report.rank_memory[rank];
    // Places of tensors begin at multiples of 256 bytes.
    EXPECT_NEAR(static_cast<double>(once.workspace_bytes[rank] - run.workspace_bytes[rank]),
                static_cast<double>(less), 16 * 256.0)
        << rank;
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
