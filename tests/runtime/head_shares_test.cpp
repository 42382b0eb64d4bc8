// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <memory>

#include "runtime/masks.hpp"
#include "runtime/pipeline.hpp"

// Plans whose heads are in shares, run on threads against dense float64 attention.
namespace magi::testing {
namespace {

struct Shape {
  std::int32_t num_ranks = 4;
  std::int32_t num_shares = 4;
  bool uneven = false;
};

/// A sound plan of as many shares.
std::shared_ptr<const Plan> shared_heads(const AttentionCase& test, const Shape& shape) {
  PlanConfig config = plan_config(test, shape.num_ranks);
  config.work = WorkMode::Heads;
  config.head_shares = shape.num_shares;
  config.placement.chunk_size = 8;
  config.placement.uneven_shard = shape.uneven;
  auto plan = shared_plan(test.mask, config);
  EXPECT_EQ(plan->num_head_shares, shape.num_shares);
  expect_sound(*plan);
  return plan;
}

TEST(HeadShares, EqualDenseAttentionOfUnevenLengthsAndManyHeads) {
  for (const std::int32_t rows : {101, 113, 127}) {
    for (const auto& [heads_q, heads_kv] : {std::pair(64, 8), std::pair(8, 8)}) {
      SCOPED_TRACE(::testing::Message() << rows << " rows, " << heads_q << " heads");
      const AttentionCase test =
          make_case(masks_of_all_kinds(rows)[1].mask, DType::Float64, {heads_q, heads_kv});
      for (const bool uneven : {false, true}) {
        for (const std::int32_t num_shares : {2, 4}) {
          expect_pipeline_close(with_all_options(test, SinkLayout::RowSinkHead),
                                shared_heads(test, {.num_shares = num_shares, .uneven = uneven}));
        }
      }
    }
  }
}

/// A plan of the hand, in which each rank keeps its rows of both shares: each share's attend then
/// has own keys, which the planner's plans collect from their owners.
std::shared_ptr<const Plan> shares_in_place(const AttentionCase& test) {
  Plan plan = *shared_heads(test, {.num_ranks = 2, .num_shares = 2});
  plan.exchanges.clear();
  plan.transfers.clear();
  for (RankPlan& rank : plan.ranks) {
    rank.q.segments.resize(1);
    rank.k.segments.resize(1);
    const std::int32_t rows = rank.q.segments[0].num_rows / 2;
    rank.slices = {band_slice({0, rows}, {0, rows}, MaskType::Causal),
                   band_slice({rows, 2 * rows}, {rows, 2 * rows}, MaskType::Causal)};
    rank.attends = {{.heads = {0, test.dense.heads_kv / 2}, .slices = {0, 2}}};
    rank.forward = rank.backward = {{.kind = StepKind::Attend, .index = 0, .after = {-1, -1}}};
  }
  return std::make_shared<const Plan>(std::move(plan));
}

TEST(HeadShares, EachShareAttendsToItsOwnKeys) {
  Mask mask{128, 128, {}};
  for (const Range rows : {Range{0, 64}, Range{64, 128}}) {
    mask.slices.push_back(band_slice(rows, rows, MaskType::Causal));
  }
  for (const DType dtype : {DType::Float64, DType::BFloat16}) {
    const AttentionCase test =
        with_all_options(make_case(mask, dtype, {8, 4}), SinkLayout::SinkHead);
    expect_pipeline_close(test, shares_in_place(test));
  }
}

/// Two ranks, each with half of the heads: what goes there and what comes back, in the tensors'
/// type.
TEST(HeadShares, ResultsAndGradientsComeBackInTheirOwnType) {
  const AttentionCase test = make_case(masks_of_all_kinds(128)[0].mask, DType::BFloat16, {8, 4});
  const auto plan = shared_heads(test, {.num_ranks = 2, .num_shares = 2});
  const PipelineRun run = run_pipeline(test, plan);
  constexpr std::int64_t kRows = 64;  // of a rank, with 4 query heads and 2 kv heads of a share
  const std::int64_t keys = kRows * 2 * (16 + 8) * 2;
  const std::int64_t lse = kRows * 4 * 4;
  const std::int64_t forward = keys + kRows * 4 * (16 + 8) * 2 + lse;
  const std::int64_t backward = 2 * keys + kRows * 4 * (16 + 2 * 8 + 16) * 2 + lse;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(run.after_forward[rank].bytes_to_peer[1 - rank], forward);
    EXPECT_EQ(plan->report.pair_bytes[rank * 2 + 1 - rank], forward - lse);
    EXPECT_EQ(run.after_backward[rank].bytes_to_peer[1 - rank], forward + backward);
  }
}

}  // namespace
}  // namespace magi::testing
