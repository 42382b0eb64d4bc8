// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "runtime/attention_suite.hpp"
#include "runtime/device_case.hpp"
#include "support/comm_error.hpp"
#include "support/gpu/gpu_test.hpp"

// Attention over ranks that are threads on one GPU, each on streams of its own, against float64.
namespace magi::test {
namespace {

using testing::AttentionCase;
using testing::masks_of_all_kinds;
using testing::PipelineRun;
using testing::plan_config;
using testing::shared_plan;
using DistributedGpuTest = GpuTest;

/// Ranks that are threads on one GPU.
struct GpuRunner {
  using Fixture = GpuTest;
  static constexpr std::int32_t kRows = 301;
  static constexpr int kTrials = 60;
  static constexpr DType kTypes[] = {DType::BFloat16, DType::Float16};
  static constexpr testing::CaseSizes kSizes{4, 2, 64, 64}, kOtherSizes{6, 2, 128, 80};
  static constexpr testing::Layout kStrides = testing::Layout::Aligned;

  static AttentionCase make(const Mask& mask, const testing::CaseSizes& sizes, std::uint64_t seed,
                            DType dtype) {
    return make_gpu_case(mask, sizes, seed, dtype);
  }
  static AttentionCase draw(RandomStream& random) {
    const Mask mask = random_mask(
        random,
        {.min_rows = 8, .max_rows_q = 300, .max_rows_k = 300, .is_square = random.chance(70)});
    const std::int32_t heads_kv = random.between(1, 4);
    const testing::CaseSizes sizes{heads_kv * random.between(1, 4), heads_kv,
                                   8 * random.between(1, 16), 8 * random.between(1, 16)};
    return make(mask, sizes, random(), kTypes[random.between(0, 1)]);
  }
  static void expect_close(const AttentionCase& test, const std::shared_ptr<const Plan>& plan) {
    expect_gpu_run_close(test, plan);
  }
  static void expect_repeats(const AttentionCase& test, const std::shared_ptr<const Plan>& plan) {
    for (const bool is_over_nvlink : {false, true}) {
      const GpuRun how{.is_over_nvlink = is_over_nvlink};
      EXPECT_TRUE(run_on_gpu(test, plan, how) == run_on_gpu(test, plan, how));
    }
  }
  static PipelineRun run(const AttentionCase& test, const std::shared_ptr<const Plan>& plan) {
    return run_on_gpu(test, plan);
  }
};

TEST_F(DistributedGpuTest, FastGradientsKeepTheRuleAndRepeatButForDq) {
  AttentionCase test = make_gpu_case(masks_of_all_kinds(420)[5].mask, {8, 2, 64, 64}, 13);
  test.is_fast_backward = true;
  for (const std::optional<std::int32_t> degree : {std::optional(0), {1}, {4}, {}}) {
    PlanConfig config = plan_config(test, 4);
    config.overlap_degree = degree;
    const auto plan = shared_plan(test.mask, config);
    expect_gpu_run_close(test, plan);
    const PipelineRun first = run_on_gpu(test, plan);
    const PipelineRun second = run_on_gpu(test, plan);
    EXPECT_EQ(first.gradients.dk, second.gradients.dk);
    EXPECT_EQ(first.gradients.dv, second.gradients.dv);
  }
}

TEST_F(DistributedGpuTest, PartialGradientsMayTravelInTheTypeOfKeys) {
  const GpuRun how{.options = {.exchange_sms = 4, .are_partials_rounded = true}};
  for (const DType type : {DType::BFloat16, DType::Float16}) {
    const AttentionCase test =
        make_gpu_case(masks_of_all_kinds(420)[5].mask, {8, 2, 64, 64}, 14, type);
    for (const std::int32_t degree : {0, 1, 3}) {
      SCOPED_TRACE(::testing::Message() << dtype_name(type) << ", degree " << degree);
      PlanConfig config = plan_config(test, 4);
      config.overlap_degree = degree;
      const auto plan = shared_plan(test.mask, config);
      expect_gpu_run_close(test, plan, how);
      for (const bool is_over_nvlink : {false, true}) {
        GpuRun transport = how;
        transport.is_over_nvlink = is_over_nvlink;
        const PipelineRun run = run_on_gpu(test, plan, transport);
        EXPECT_TRUE(run_on_gpu(test, plan, transport) == run);
        for (std::size_t pair = 0; pair < 16; ++pair) {
          const std::int64_t cast = plan->report.pair_bytes[pair];
          const std::int64_t reduce = plan->report.pair_bytes[pair % 4 * 4 + pair / 4];
          EXPECT_EQ(run.after_backward[pair / 4].bytes_to_peer[pair % 4], 2 * cast + reduce);
        }
      }
    }
  }
}

TEST_F(DistributedGpuTest, StagesByHeadsAreSectionsOverNvlink) {
  const AttentionCase test = make_gpu_case(masks_of_all_kinds(420)[5].mask, {8, 4, 64, 64}, 15);
  PlanConfig config = plan_config(test, 4);
  config.overlap_degree = 4;
  const auto all = shared_plan(test.mask, config);
  config.max_exchange_bytes = *std::ranges::max_element(all->report.rank_memory) / 2;
  const auto plan = shared_plan(test.mask, config);
  ASSERT_EQ(plan->stages_in_flight, 2);
  const PipelineRun run = run_on_gpu(test, plan, {.repeats = 3, .is_over_nvlink = true});
  const PipelineRun by_hand = run_on_gpu(test, all, {.is_over_nvlink = true, .num_sections = 4});
  EXPECT_TRUE(run == by_hand);
  EXPECT_EQ(run.workspace_bytes, by_hand.workspace_bytes);
}

TEST_F(DistributedGpuTest, RepeatsBitForBitInOneObjectAndInMany) {
  const AttentionCase test = make_gpu_case(masks_of_all_kinds(420)[5].mask, {8, 1, 64, 64}, 10);
  PlanConfig config = plan_config(test, 5);
  config.stage_mode = StageMode::Rows;
  config.overlap_degree = 3;
  const auto plan = shared_plan(test.mask, config);
  const PipelineRun once = run_on_gpu(test, plan);
  EXPECT_TRUE(run_on_gpu(test, plan, {.repeats = 20}) == once);
  for (int repeat = 0; repeat < 5; ++repeat) EXPECT_TRUE(run_on_gpu(test, plan) == once);
}

TEST_F(DistributedGpuTest, TakesItsMemoryFromTheCallersAllocator) {
  const AttentionCase test = make_gpu_case(masks_of_all_kinds(256)[1].mask, {4, 2, 64, 64}, 12);
  const auto plan = shared_plan(test.mask, plan_config(test, 3));
  std::atomic<std::int64_t> num_allocated = 0;
  std::atomic<std::int64_t> bytes_held = 0;
  GpuRun how;
  how.options.allocator.allocate = [&](std::size_t size_bytes, std::int32_t device, void* stream) {
    EXPECT_EQ(device, 0);
    ++num_allocated;
    bytes_held += static_cast<std::int64_t>(size_bytes);
    void* data = nullptr;
    EXPECT_EQ(cudaMallocAsync(&data, size_bytes, static_cast<cudaStream_t>(stream)), cudaSuccess);
    return data;
  };
  how.options.allocator.release = [&](void* data, std::size_t size_bytes, std::int32_t,
                                      void* stream) {
    bytes_held -= static_cast<std::int64_t>(size_bytes);
    EXPECT_EQ(cudaFreeAsync(data, static_cast<cudaStream_t>(stream)), cudaSuccess);
  };
  const PipelineRun own = run_on_gpu(test, plan);
  const PipelineRun theirs = run_on_gpu(test, plan, how);
  EXPECT_TRUE(own == theirs);
  EXPECT_GE(num_allocated, 6);
  EXPECT_EQ(bytes_held, 0);
  const std::int64_t num_first = num_allocated;
  how.repeats = 2;
  EXPECT_TRUE(run_on_gpu(test, plan, how) == own);
  EXPECT_EQ(num_allocated, 2 * num_first + 6) << "a call like one before takes its memory at once";
  EXPECT_EQ(own.workspace_bytes, theirs.workspace_bytes);
  EXPECT_GT(own.workspace_bytes[0], 0U);
}

TEST_F(DistributedGpuTest, RanksThatDisagreeOnAnExchangeAreTold) {
  const auto group = make_thread_group(2, {.deadline = std::chrono::seconds(20)});
  const DeviceBuffer memory(64);
  std::string messages[2];
  {
    std::vector<std::jthread> ranks;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        const std::vector<std::int64_t> sizes(2, 16);
        messages[rank] =
            testing::catch_comm_error([&] {
              group[rank]->start_bytes(
                  {.send = memory.data(),
                   .receive = memory.data(),
                   .send_bytes = sizes,
                   .receive_bytes = sizes,
                   .device = 0,
                   .tag = {.plan_digest = 7, .stage = static_cast<std::int32_t>(rank)}},
                  nullptr);
            }).what();
      });
    }
  }
  for (const std::string& message : messages) {
    EXPECT_NE(message.find("plan 0x0000000000000007, stage"), std::string::npos) << message;
  }
}

TEST_F(DistributedGpuTest, ARankThatDoesNotComeIsNamed) {
  const auto group = make_thread_group(2, {.deadline = std::chrono::milliseconds(50)});
  const std::vector<std::int64_t> none(2, 0);
  const std::string message =
      testing::catch_comm_error([&] {
        group[0]->start_bytes({.send_bytes = none, .receive_bytes = none, .device = 0});
      }).what();
  EXPECT_NE(message.find("rank 0 waited 50 ms for rank 1"), std::string::npos) << message;
}

}  // namespace
}  // namespace magi::test

namespace magi::testing {
INSTANTIATE_TYPED_TEST_SUITE_P(Gpu, AttentionOverRanks, test::GpuRunner);
}  // namespace magi::testing
