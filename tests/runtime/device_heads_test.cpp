// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "runtime/device_case.hpp"
#include "runtime/masks.hpp"
#include "support/gpu/gpu_test.hpp"

// Plans whose heads are in shares, over ranks that are threads on one GPU, against float64.
namespace magi::test {
namespace {

using testing::AttentionCase;
using testing::masks_of_all_kinds;
using HeadSharesGpuTest = GpuTest;

std::shared_ptr<const Plan> shared_heads(const AttentionCase& test, std::int32_t num_ranks,
                                         std::int32_t num_shares, std::int32_t degree) {
  PlanConfig config = testing::plan_config(test, num_ranks);
  config.work = WorkMode::Heads;
  config.head_shares = num_shares;
  config.overlap_degree = degree;
  return testing::shared_plan(test.mask, config);
}

TEST_F(HeadSharesGpuTest, EqualDenseAttentionOnEveryMaskAndShare) {
  for (const auto& [name, mask] : masks_of_all_kinds(301)) {
    for (const auto& [num_ranks, num_shares] : {std::pair(2, 2), {4, 2}, {4, 4}}) {
      SCOPED_TRACE(name + ", ranks " + std::to_string(num_ranks) + ", shares " +
                   std::to_string(num_shares));
      const AttentionCase test = make_gpu_case(mask, {16, 4, 64, 64});
      expect_gpu_run_close(test, shared_heads(test, num_ranks, num_shares, 1));
    }
  }
}

TEST_F(HeadSharesGpuTest, EqualDenseAttentionWithSinkCapAndStages) {
  const Mask mask = masks_of_all_kinds(260)[5].mask;
  for (const SinkLayout layout : {SinkLayout::SinkHead, SinkLayout::RowSinkHead}) {
    for (const testing::Layout places : {testing::Layout::Packed, testing::Layout::Aligned}) {
      AttentionCase test = make_gpu_case(mask, {8, 8, 128, 128});
      test.dense.num_sinks = 2;
      test.dense.params = {.softmax_scale = 0.1, .softcap = 2.0, .sink_layout = layout};
      test.dlse.resize(1);
      test.layout = places;
      RandomStream random(4);
      draw_values(random, test);
      for (const std::int32_t degree : {0, 2, 4}) {
        expect_gpu_run_close(test, shared_heads(test, 2, 2, degree));
        expect_gpu_run_close(test, shared_heads(test, 4, 2, degree));
      }
    }
  }
}

TEST_F(HeadSharesGpuTest, RepeatsBitForBit) {
  const AttentionCase test = make_gpu_case(masks_of_all_kinds(301)[1].mask, {16, 4, 64, 64});
  const auto plan = shared_heads(test, 4, 4, 1);
  for (const bool is_over_nvlink : {false, true}) {
    const GpuRun how{.is_over_nvlink = is_over_nvlink};
    EXPECT_TRUE(run_on_gpu(test, plan, how) == run_on_gpu(test, plan, how));
  }
}

}  // namespace
}  // namespace magi::test
