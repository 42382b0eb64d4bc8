// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <memory>

#include "runtime/masks.hpp"
#include "runtime/pipeline.hpp"
#include "support/random_mask.hpp"

// Plans of make_plan in which queries travel, run on threads against dense float64 attention.
namespace magi::testing {
namespace {

AttentionCase make_case(const Mask& mask, DType dtype, std::int32_t heads_q,
                        std::int32_t heads_kv) {
  AttentionCase test;
  test.mask = mask;
  test.dtype = test.result_dtype = dtype;
  test.dense = {.rows_q = mask.rows_q,
                .rows_k = mask.rows_k,
                .heads_q = heads_q,
                .heads_kv = heads_kv,
                .dim_qk = 16,
                .dim_v = 8};
  RandomStream random(1);
  draw_values(random, test);
  return test;
}

/// A plan of the search in which some rank receives queries, or none where nothing is gained.
std::shared_ptr<const Plan> moving_plan(const AttentionCase& test, std::int32_t num_ranks,
                                        PlacementAlgorithm algorithm, std::int32_t degree) {
  PlanConfig config = plan_config(test, num_ranks);
  config.work = WorkMode::Queries;
  config.placement.algorithm = algorithm;
  config.placement.chunk_size = 8;
  config.overlap_degree = degree;
  auto plan = shared_plan(test.mask, config);
  EXPECT_TRUE(check_plan(*plan).empty()) << check_plan(*plan).front();
  return plan;
}

TEST(MovedQueries, EqualDenseAttentionOnEveryMaskPlacementAndDegree) {
  int num_moving = 0;
  for (const auto& [name, mask] : masks_of_all_kinds(128)) {
    for (const auto algorithm : {PlacementAlgorithm::Auto, PlacementAlgorithm::Affinity}) {
      for (const std::int32_t degree : {0, 1, 2}) {
        SCOPED_TRACE(::testing::Message()
                     << name << ", " << placement_name(algorithm) << ", degree " << degree);
        const AttentionCase test = make_case(mask, DType::Float64, 4, 4);
        const auto plan = moving_plan(test, 4, algorithm, degree);
        num_moving += plan->ranks[0].q.segments.size() > 1 ? 1 : 0;
        expect_pipeline_close(test, plan);
      }
    }
  }
  EXPECT_GT(num_moving, 10);
}

TEST(MovedQueries, EqualDenseAttentionWithSinkCapAndLseGradientInEveryType) {
  for (const DType dtype : {DType::Float64, DType::Float32, DType::BFloat16, DType::Float16}) {
    for (const SinkLayout layout : {SinkLayout::SinkHead, SinkLayout::RowSinkHead}) {
      SCOPED_TRACE(::testing::Message() << "type " << static_cast<int>(dtype));
      AttentionCase test = make_case(masks_of_all_kinds(120)[1].mask, dtype, 4, 2);
      test.dense.num_sinks = 2;
      test.dense.params = {.softmax_scale = 0.3, .softcap = 2.0, .sink_layout = layout};
      test.dlse.resize(1);
      RandomStream random(2);
      draw_values(random, test);
      const auto plan = moving_plan(test, 3, PlacementAlgorithm::SequentialSelect, 2);
      ASSERT_GT(plan->ranks[0].q.segments.size(), 1u);
      expect_pipeline_close(test, plan);
    }
  }
}

TEST(MovedQueries, EverySearchByNameEqualsDenseAttentionOnRandomMasks) {
  int num_moving = 0;
  for (std::int32_t i = 0; i < kNumWorkSearches; ++i) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      const auto search = static_cast<WorkSearch>(i);
      SCOPED_TRACE(::testing::Message() << work_search_name(search) << ", seed " << seed);
      RandomStream random(seed);
      RandomMaskOptions options;
      options.is_square = random.chance(60);
      const Mask mask = random_mask(random, options);
      const AttentionCase test = make_case(mask, DType::Float64, 4, random.chance(50) ? 4 : 2);
      PlanConfig config = plan_config(test, random.between(2, 4));
      config.work = WorkMode::Queries;
      config.work_search = search;
      config.overlap_degree = random.between(0, 2);
      config.placement.chunk_size = 1;
      const auto plan = shared_plan(mask, config);
      num_moving += plan->ranks[0].q.segments.size() > 1 ? 1 : 0;
      expect_pipeline_close(test, plan);
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(num_moving, 20);
}

TEST(MovedQueries, RunsRepeatBitwise) {
  const AttentionCase test = make_case(masks_of_all_kinds(128)[1].mask, DType::BFloat16, 4, 4);
  const auto plan = moving_plan(test, 4, PlacementAlgorithm::Auto, 2);
  EXPECT_EQ(run_pipeline(test, plan), run_pipeline(test, plan));
}

}  // namespace
}  // namespace magi::testing
