// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include "runtime/masks.hpp"
#include "runtime/pipeline.hpp"

// Attention over ranks against float64, for ranks on any device: a Runner makes cases and runs
// them.
namespace magi::testing {

template <typename Runner>
class AttentionOverRanks : public Runner::Fixture {
 protected:
  static AttentionCase make(const Mask& mask, std::int32_t heads_q, std::int32_t heads_kv,
                            std::uint64_t seed) {
    CaseSizes sizes = Runner::kSizes;
    sizes.heads_q = heads_q;
    sizes.heads_kv = heads_kv;
    return Runner::make(mask, sizes, seed, Runner::kTypes[0]);
  }
  static Mask four_types(std::int32_t rows) { return masks_of_all_kinds(rows)[5].mask; }
  /// A sound plan of this kind of work; shares: of the heads, where they are shared out.
  static std::shared_ptr<const Plan> worked_plan(const AttentionCase& test, std::int32_t num_ranks,
                                                 WorkMode work, std::int32_t degree,
                                                 std::int32_t shares = 2) {
    PlanConfig config = plan_config(test, num_ranks);
    config.work = work;
    config.head_shares = work == WorkMode::Heads ? shares : 0;
    config.placement.chunk_size = 8;
    config.overlap_degree = degree;
    auto plan = shared_plan(test.mask, config);
    expect_sound(*plan);
    return plan;
  }
  /// A sound plan whose stages take turns in memory; null where one stage brings all keys.
  static std::shared_ptr<const Plan> plan_in_turns(const AttentionCase& test,
                                                   std::int32_t num_ranks, StageMode mode) {
    PlanConfig config = plan_config(test, num_ranks);
    config.stage_mode = mode;
    config.overlap_degree.reset();
    config.cost.memory_bytes_per_second = 1e6;  // merges seldom, so by heads where it may
    config.min_stage_rows = 1;
    config.placement.chunk_size = 8;
    config.max_exchange_bytes = 0;
    const Plan plan = make_plan(test.mask, config);
    const std::int64_t bytes = *std::ranges::max_element(plan.report.rank_memory);
    if (bytes == 0) return nullptr;
    // Two of four heads at a time, or with parts of rows too a fourth of all.
    config.max_exchange_bytes = mode == StageMode::Auto ? bytes / 4 : bytes / 2;
    auto bounded = shared_plan(test.mask, config);
    EXPECT_EQ(bounded->stages_in_flight, 2);
    expect_sound(*bounded);
    return bounded;
  }
};
constexpr WorkMode kWorkModes[] = {WorkMode::Keys, WorkMode::Queries, WorkMode::Heads};

TYPED_TEST_SUITE_P(AttentionOverRanks);

TYPED_TEST_P(AttentionOverRanks, EqualsDenseAttentionForEveryGroupSizeAndMask) {
  for (const auto& [name, mask] : masks_of_all_kinds(TypeParam::kRows)) {
    const AttentionCase test = this->make(mask, 4, 2, 1);
    for (std::int32_t num_ranks = 1; num_ranks <= 8; ++num_ranks) {
      SCOPED_TRACE(name + ", ranks " + std::to_string(num_ranks));
      TypeParam::expect_close(test, shared_plan(mask, plan_config(test, num_ranks)));
    }
  }
}

TYPED_TEST_P(AttentionOverRanks, EqualsDenseAttentionForEveryOverlapDegree) {
  const Mask mask = this->four_types(TypeParam::kRows);
  for (const auto& [heads_q, heads_kv] : {std::pair{8, 8}, {8, 2}, {4, 1}}) {
    const AttentionCase test = this->make(mask, heads_q, heads_kv, 2);
    for (const StageMode mode : {StageMode::Heads, StageMode::Rows}) {
      for (const std::optional<std::int32_t> degree : {std::optional(0), {1}, {2}, {4}, {}}) {
        SCOPED_TRACE(::testing::Message()
                     << "heads " << heads_q << "/" << heads_kv << ", mode "
                     << static_cast<int>(mode) << ", degree " << degree.value_or(-1));
        PlanConfig config = plan_config(test, 4);
        config.stage_mode = mode;
        config.overlap_degree = degree;
        TypeParam::expect_close(test, shared_plan(mask, config));
      }
    }
  }
}

TYPED_TEST_P(AttentionOverRanks, EqualsDenseAttentionInEveryTypeWithSinkCapAndStrides) {
  const Mask mask = this->four_types(120);
  for (const DType dtype : TypeParam::kTypes) {
    for (const SinkLayout layout : {SinkLayout::SinkHead, SinkLayout::RowSinkHead}) {
      for (const DType result : {dtype, DType::Float32}) {
        if (dtype == DType::Float64 && result != dtype) continue;
        AttentionCase test = TypeParam::make(mask, TypeParam::kOtherSizes, 3, dtype);
        test.result_dtype = result;
        test.layout = TypeParam::kStrides;
        test = with_all_options(std::move(test), layout);
        for (const WorkMode work : kWorkModes) {
          SCOPED_TRACE(work_name(work));
          TypeParam::expect_close(test, this->worked_plan(test, 4, work, 2));
        }
      }
    }
  }
}

TYPED_TEST_P(AttentionOverRanks, MovedQueriesEqualDenseAttention) {
  int num_moving = 0;
  for (const auto& [name, mask] : masks_of_all_kinds(TypeParam::kRows)) {
    for (const std::int32_t degree : {0, 1, 2}) {
      SCOPED_TRACE(name + ", degree " + std::to_string(degree));
      const AttentionCase test = this->make(mask, 4, 4, 1);
      const auto plan = this->worked_plan(test, 4, WorkMode::Queries, degree);
      num_moving += plan->ranks[0].q.segments.size() > 1 ? 1 : 0;
      TypeParam::expect_close(test, plan);
    }
  }
  EXPECT_GT(num_moving, 3);
}

TYPED_TEST_P(AttentionOverRanks, SharedHeadsEqualDenseAttention) {
  for (const auto& [name, mask] : masks_of_all_kinds(TypeParam::kRows)) {
    for (const std::int32_t num_shares : {2, 4}) {
      for (const std::int32_t degree : {0, 1, 2}) {
        SCOPED_TRACE(::testing::Message()
                     << name << ", " << num_shares << " shares, degree " << degree);
        const AttentionCase test = this->make(mask, 8, 4, 1);
        TypeParam::expect_close(test,
                                this->worked_plan(test, 4, WorkMode::Heads, degree, num_shares));
      }
    }
  }
}

TYPED_TEST_P(AttentionOverRanks, StagesThatTakeTurnsInMemoryEqualDenseAttention) {
  int num_of_both = 0;  // by rows and heads
  for (const auto& [name, mask] : masks_of_all_kinds(TypeParam::kRows)) {
    const AttentionCase test = with_all_options(this->make(mask, 8, 4, 1), SinkLayout::SinkHead);
    for (const StageMode mode : {StageMode::Heads, StageMode::Rows, StageMode::Auto}) {
      SCOPED_TRACE(name + ", mode " + std::to_string(static_cast<int>(mode)));
      const auto plan = this->plan_in_turns(test, 4, mode);
      if (plan == nullptr) continue;
      const bool has_sections = plan->exchanges[0].heads.size() < 4;
      num_of_both += has_sections && plan->ranks[0].k.segments.size() > 2 ? 1 : 0;
      TypeParam::expect_close(test, plan);
      TypeParam::expect_repeats(test, plan);
    }
  }
  EXPECT_GT(num_of_both, 2);
}

TYPED_TEST_P(AttentionOverRanks, RepeatsBitForBit) {
  const AttentionCase test =
      TypeParam::make(masks_of_all_kinds(128)[1].mask, {4, 4, 64, 64}, 10, DType::BFloat16);
  for (const WorkMode work : kWorkModes) {
    for (const std::int32_t degree : {0, 2}) {
      SCOPED_TRACE(::testing::Message() << work_name(work) << ", degree " << degree);
      TypeParam::expect_repeats(test, this->worked_plan(test, 4, work, degree));
    }
  }
}

TYPED_TEST_P(AttentionOverRanks, EqualsDenseAttentionOnUnevenAndTolerantPlacements) {
  for (const auto& [name, mask] : masks_of_all_kinds(127)) {
    SCOPED_TRACE(name);
    const AttentionCase test = this->make(mask, 2, 2, 5);
    PlanConfig config = plan_config(test, 3);
    config.placement.uneven_shard = true;
    TypeParam::expect_close(test, shared_plan(mask, config));
    config.placement.uneven_shard = false;
    config.placement.token_tolerance = 0.5;
    TypeParam::expect_close(test, shared_plan(mask, config));
  }
}

TYPED_TEST_P(AttentionOverRanks, RanksWithoutRowsTakePart) {
  const Mask mask = this->four_types(200);
  const AttentionCase test = with_all_options(this->make(mask, 4, 2, 6), SinkLayout::SinkHead);
  const Placement placement = placement_from_chunks(200, 50, 4, {0, 2, 2, 0});
  for (const std::int32_t degree : {0, 1, 2}) {
    PlanConfig config = plan_config(test, 4);
    config.overlap_degree = degree;
    TypeParam::expect_close(
        test, std::make_shared<const Plan>(make_plan_on(mask, config, placement, placement)));
  }
}

TYPED_TEST_P(AttentionOverRanks, CrossAttentionPlacesQueriesAndKeysApart) {
  for (const auto& [rows_q, rows_k] : {std::pair{150, 61}, {40, 420}, {1, 64}}) {
    Mask mask{.rows_q = rows_q, .rows_k = rows_k};
    mask.slices = {band_slice({0, rows_q}, {5, rows_k}, MaskType::Full),
                   band_slice({0, rows_q}, {0, 5}, MaskType::Causal)};
    const AttentionCase test = this->make(mask, 4, 2, 8);
    PlanConfig config = plan_config(test, rows_q == 1 ? 1 : 3);
    config.placement_k = PlacementConfig{.uneven_shard = true};
    TypeParam::expect_close(test, shared_plan(mask, config));
  }
}

TYPED_TEST_P(AttentionOverRanks, EqualsDenseAttentionOnRandomCases) {
  constexpr std::uint64_t kSeed = 20261121;
  RandomStream random(kSeed);
  int num_moving = 0;
  for (int trial = 0; trial < TypeParam::kTrials && !this->HasFailure(); ++trial) {
    SCOPED_TRACE(::testing::Message() << "seed " << kSeed << ", trial " << trial);
    const AttentionCase test = TypeParam::draw(random);
    const std::int32_t largest = std::min({8, test.mask.rows_q, test.mask.rows_k});
    PlanConfig config = plan_config(test, random.between(1, largest));
    config.placement.uneven_shard = random.chance(50);
    config.placement.chunk_size = random.between(1, 40);
    config.stage_mode = random.chance(50) ? StageMode::Heads : StageMode::Rows;
    config.overlap_degree = random.between(0, 4);
    config.work = random.chance(50) ? WorkMode::Queries : WorkMode::Keys;
    SCOPED_TRACE(::testing::Message()
                 << "ranks " << config.num_ranks << ", degree " << *config.overlap_degree
                 << ", uneven " << config.placement.uneven_shard << ", " << work_name(config.work));
    const auto plan = shared_plan(test.mask, config);
    num_moving += plan->ranks[0].q.segments.size() > 1 ? 1 : 0;
    TypeParam::expect_close(test, plan);
  }
  EXPECT_GT(num_moving, 3);
}

TYPED_TEST_P(AttentionOverRanks, MovesTheBytesThatThePlanReports) {
  for (const auto& [name, mask] : masks_of_all_kinds(256)) {
    for (const std::int32_t degree : {0, 1, 2}) {
      SCOPED_TRACE(name + ", degree " + std::to_string(degree));
      const AttentionCase test = TypeParam::make(mask, TypeParam::kSizes, 11, DType::BFloat16);
      PlanConfig config = plan_config(test, 4);
      config.overlap_degree = degree;
      const auto plan = shared_plan(mask, config);
      const PipelineRun run = TypeParam::run(test, plan);
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

REGISTER_TYPED_TEST_SUITE_P(AttentionOverRanks, EqualsDenseAttentionForEveryGroupSizeAndMask,
                            EqualsDenseAttentionForEveryOverlapDegree,
                            EqualsDenseAttentionInEveryTypeWithSinkCapAndStrides,
                            EqualsDenseAttentionOnUnevenAndTolerantPlacements,
                            MovedQueriesEqualDenseAttention, SharedHeadsEqualDenseAttention,
                            StagesThatTakeTurnsInMemoryEqualDenseAttention, RepeatsBitForBit,
                            RanksWithoutRowsTakePart, CrossAttentionPlacesQueriesAndKeysApart,
                            EqualsDenseAttentionOnRandomCases, MovesTheBytesThatThePlanReports);

}  // namespace magi::testing
