// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "runtime/device_case.hpp"
#include "runtime/masks.hpp"
#include "support/gpu/gpu_test.hpp"

// Attention over ranks that are threads on one GPU, each on streams of its own, against float64.
namespace magi::test {
namespace {

using testing::AttentionCase;
using testing::masks_of_all_kinds;
using testing::PassKind;
using testing::PipelineRun;
using testing::plan_config;
using testing::shared_plan;
using DistributedGpuTest = GpuTest;

TEST_F(DistributedGpuTest, EqualsDenseAttentionForEveryGroupSizeAndMask) {
  for (const auto& [name, mask] : masks_of_all_kinds(301)) {
    const AttentionCase test = make_gpu_case(mask, {.heads_q = 4}, 1);
    for (std::int32_t num_ranks = 1; num_ranks <= 8; ++num_ranks) {
      SCOPED_TRACE(name + ", ranks " + std::to_string(num_ranks));
      expect_gpu_run_close(test, shared_plan(mask, plan_config(test, num_ranks)));
    }
  }
}

TEST_F(DistributedGpuTest, EqualsDenseAttentionForEveryOverlapDegree) {
  const Mask mask = masks_of_all_kinds(330)[5].mask;
  for (const GpuCaseSizes sizes : {GpuCaseSizes{8, 8}, GpuCaseSizes{8, 2}, GpuCaseSizes{4, 1}}) {
    const AttentionCase test = make_gpu_case(mask, sizes, 2);
    for (const StageMode mode : {StageMode::Heads, StageMode::Rows}) {
      for (const std::optional<std::int32_t> degree : {std::optional(0), {1}, {2}, {4}, {}}) {
        SCOPED_TRACE(::testing::Message()
                     << "heads " << sizes.heads_q << "/" << sizes.heads_kv << ", mode "
                     << static_cast<int>(mode) << ", degree " << degree.value_or(-1));
        PlanConfig config = plan_config(test, 4);
        config.stage_mode = mode;
        config.overlap_degree = degree;
        expect_gpu_run_close(test, shared_plan(mask, config));
      }
    }
  }
}

TEST_F(DistributedGpuTest, EqualsDenseAttentionWithSinkCapDimsAndStrides) {
  const Mask mask = masks_of_all_kinds(200)[5].mask;
  for (const DType dtype : {DType::BFloat16, DType::Float16}) {
    for (const SinkLayout layout : {SinkLayout::SinkHead, SinkLayout::RowSinkHead}) {
      for (const DType result : {dtype, DType::Float32}) {
        AttentionCase test = make_gpu_case(mask, {4, 2, 128, 80}, 3, dtype);
        test.result_dtype = result;
        test.dense.num_sinks = 3;
        test.dense.params = {.softmax_scale = 0.1, .softcap = 2.0, .sink_layout = layout};
        test.dlse.resize(1);
        test.layout = testing::Layout::Aligned;
        RandomStream random(4);
        draw_values(random, test);
        PlanConfig config = plan_config(test, 3);
        config.overlap_degree = 2;
        expect_gpu_run_close(test, shared_plan(mask, config));
      }
    }
  }
}

TEST_F(DistributedGpuTest, EqualsDenseAttentionOnUnevenAndTolerantPlacements) {
  for (const auto& [name, mask] : masks_of_all_kinds(227)) {
    SCOPED_TRACE(name);
    const AttentionCase test = make_gpu_case(mask, {2, 2}, 5);
    PlanConfig config = plan_config(test, 3);
    config.placement.uneven_shard = true;
    expect_gpu_run_close(test, shared_plan(mask, config));
    config.placement.uneven_shard = false;
    config.placement.token_tolerance = 0.5;
    expect_gpu_run_close(test, shared_plan(mask, config));
  }
}

TEST_F(DistributedGpuTest, RanksWithoutRowsTakePart) {
  const Mask mask = masks_of_all_kinds(200)[5].mask;
  AttentionCase test = make_gpu_case(mask, {4, 2}, 6);
  test.dense.num_sinks = 2;
  RandomStream random(6);
  draw_values(random, test);
  const Placement placement = placement_from_chunks(200, 50, 4, {0, 2, 2, 0});
  for (const std::int32_t degree : {0, 1, 2}) {
    PlanConfig config = plan_config(test, 4);
    config.overlap_degree = degree;
    expect_gpu_run_close(
        test, std::make_shared<const Plan>(make_plan_on(mask, config, placement, placement)));
  }
}

TEST_F(DistributedGpuTest, CrossAttentionPlacesQueriesAndKeysApart) {
  for (const auto& [rows_q, rows_k] : {std::pair{150, 61}, {40, 420}, {1, 64}}) {
    Mask mask{.rows_q = rows_q, .rows_k = rows_k};
    mask.slices = {band_slice({0, rows_q}, {5, rows_k}, MaskType::Full),
                   band_slice({0, rows_q}, {0, 5}, MaskType::Causal)};
    const AttentionCase test = make_gpu_case(mask, {4, 2}, 8);
    PlanConfig config = plan_config(test, rows_q == 1 ? 1 : 3);
    config.placement_k = PlacementConfig{.uneven_shard = true};
    expect_gpu_run_close(test, shared_plan(mask, config));
  }
}

TEST_F(DistributedGpuTest, EqualsDenseAttentionOnRandomCases) {
  constexpr std::uint64_t kSeed = 20261121;
  RandomStream random(kSeed);
  for (int trial = 0; trial < 60 && !HasFailure(); ++trial) {
    SCOPED_TRACE(::testing::Message() << "seed " << kSeed << ", trial " << trial);
    const Mask mask = random_mask(
        random,
        {.min_rows = 8, .max_rows_q = 300, .max_rows_k = 300, .is_square = random.chance(70)});
    const std::int32_t heads_kv = random.between(1, 4);
    const GpuCaseSizes sizes{heads_kv * random.between(1, 4), heads_kv, 8 * random.between(1, 16),
                             8 * random.between(1, 16)};
    const AttentionCase test = make_gpu_case(mask, sizes, 100 + static_cast<std::uint64_t>(trial),
                                             random.chance(50) ? DType::BFloat16 : DType::Float16);
    PlanConfig config =
        plan_config(test, random.between(1, std::min({8, mask.rows_q, mask.rows_k})));
    config.placement.uneven_shard = random.chance(50);
    config.placement.chunk_size = random.between(1, 40);
    config.stage_mode = random.chance(50) ? StageMode::Heads : StageMode::Rows;
    config.overlap_degree = random.between(0, 4);
    SCOPED_TRACE(::testing::Message()
                 << "ranks " << config.num_ranks << ", degree " << *config.overlap_degree
                 << ", uneven " << config.placement.uneven_shard);
    expect_gpu_run_close(test, shared_plan(mask, config));
  }
}

TEST_F(DistributedGpuTest, FastGradientsKeepTheRuleAndRepeatButForDq) {
  AttentionCase test = make_gpu_case(masks_of_all_kinds(420)[5].mask, {8, 2}, 13);
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
    const AttentionCase test = make_gpu_case(masks_of_all_kinds(420)[5].mask, {8, 2}, 14, type);
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

TEST_F(DistributedGpuTest, RepeatsBitForBitInOneObjectAndInMany) {
  const AttentionCase test = make_gpu_case(masks_of_all_kinds(420)[5].mask, {8, 1}, 10);
  PlanConfig config = plan_config(test, 5);
  config.stage_mode = StageMode::Rows;
  config.overlap_degree = 3;
  const auto plan = shared_plan(test.mask, config);
  const PipelineRun once = run_on_gpu(test, plan);
  EXPECT_TRUE(run_on_gpu(test, plan, {.repeats = 20}) == once);
  for (int repeat = 0; repeat < 5; ++repeat) EXPECT_TRUE(run_on_gpu(test, plan) == once);
}

TEST_F(DistributedGpuTest, MovesTheBytesThatThePlanReports) {
  for (const auto& [name, mask] : masks_of_all_kinds(256)) {
    for (const std::int32_t degree : {0, 1, 2}) {
      SCOPED_TRACE(name + ", degree " + std::to_string(degree));
      const AttentionCase test = make_gpu_case(mask, {4, 2}, 11);
      PlanConfig config = plan_config(test, 4);
      config.overlap_degree = degree;
      const auto plan = shared_plan(mask, config);
      const PipelineRun run = run_on_gpu(test, plan);
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

TEST_F(DistributedGpuTest, TakesItsMemoryFromTheCallersAllocator) {
  const AttentionCase test = make_gpu_case(masks_of_all_kinds(256)[1].mask, {4, 2}, 12);
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

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no exception";
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
        messages[rank] = message_of([&] {
          group[rank]->start_bytes(
              {.send = memory.data(),
               .receive = memory.data(),
               .send_bytes = sizes,
               .receive_bytes = sizes,
               .device = 0,
               .tag = {.plan_digest = 7, .stage = static_cast<std::int32_t>(rank)}},
              nullptr);
        });
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
  const std::string message = message_of(
      [&] { group[0]->start_bytes({.send_bytes = none, .receive_bytes = none, .device = 0}); });
  EXPECT_NE(message.find("rank 0 waited 50 ms for rank 1"), std::string::npos) << message;
}

}  // namespace
}  // namespace magi::test
