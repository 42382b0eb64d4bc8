// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "runtime/device_case.hpp"
#include "runtime/masks.hpp"
#include "support/gpu/gpu_test.hpp"

// Plans in which queries travel, over ranks that are threads on one GPU, against float64.
namespace magi::test {
namespace {

using testing::AttentionCase;
using testing::masks_of_all_kinds;
using MovedQueriesGpuTest = GpuTest;

std::shared_ptr<const Plan> moving_plan(const AttentionCase& test, std::int32_t degree) {
  PlanConfig config = testing::plan_config(test, 4);
  config.work = WorkMode::Queries;
  config.placement.chunk_size = 16;
  config.overlap_degree = degree;
  return testing::shared_plan(test.mask, config);
}

TEST_F(MovedQueriesGpuTest, EqualDenseAttentionOnEveryMaskAndDegree) {
  int num_moving = 0;
  for (const auto& [name, mask] : masks_of_all_kinds(330)) {
    const AttentionCase test = make_gpu_case(mask, {8, 4, 128, 128});
    for (const std::int32_t degree : {0, 1, 2}) {
      SCOPED_TRACE(name + ", degree " + std::to_string(degree));
      const auto plan = moving_plan(test, degree);
      num_moving += plan->ranks[0].q.segments.size() > 1 ? 1 : 0;
      expect_gpu_run_close(test, plan);
    }
  }
  EXPECT_GT(num_moving, 3);
}

TEST_F(MovedQueriesGpuTest, EqualDenseAttentionOnOddHeadsWithSinks) {
  AttentionCase test =
      make_gpu_case(masks_of_all_kinds(260)[5].mask, {6, 3, 128, 128});  // odd rows of lse
  test.dense.num_sinks = 2;
  test.dense.params = {.softmax_scale = 0.1, .softcap = 2.0, .sink_layout = SinkLayout::SinkHead};
  test.dlse.resize(1);
  RandomStream random(4);
  draw_values(random, test);
  for (const std::int32_t degree : {0, 1, 3}) {
    expect_gpu_run_close(test, moving_plan(test, degree));
  }
}

TEST_F(MovedQueriesGpuTest, RepeatsBitForBit) {
  const AttentionCase test = make_gpu_case(masks_of_all_kinds(301)[1].mask, {8, 4, 128, 128});
  for (const std::int32_t degree : {0, 2}) {
    const auto plan = moving_plan(test, degree);
    ASSERT_GT(plan->ranks[0].q.segments.size(), 1u);
    for (const bool is_over_nvlink : {false, true}) {
      const GpuRun how{.is_over_nvlink = is_over_nvlink};
      EXPECT_TRUE(run_on_gpu(test, plan, how) == run_on_gpu(test, plan, how));
    }
  }
}

}  // namespace
}  // namespace magi::test
