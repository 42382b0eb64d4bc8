// SPDX-License-Identifier: Apache-2.0
#include "magi/block_mask.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/sm90/block_case.hpp"
#include "magi/error.hpp"
#include "support/gpu/gpu_test.hpp"
#include "support/gpu/graph.hpp"

namespace magi::test {
namespace {

using BlockMaskTest = GpuTest;

GuardedOutputs outputs_of(const BlockCase& test) {
  return {test.shape(), test.has_float_out ? DType::Float32 : test.type};
}

ForwardArgs args_of(const BlockCaseData& data, const GuardedOutputs& outputs) {
  ForwardArgs args;
  data.put_into(args);
  outputs.put_into(args, false);
  return args;
}

/// Runs in a workspace full of poison.
void run(const BlockCase& test, const ForwardArgs& args, const BlockMask& mask) {
  const DeviceBuffer memory(static_cast<std::size_t>(forward_workspace_bytes(args, mask)));
  memory.fill(0xff, nullptr);
  attention_forward_cuda(args, mask,
                         {memory.data(), static_cast<std::int64_t>(memory.size_bytes())},
                         {.packed_heads = test.packed_heads}, nullptr);
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

/// Compares with float64.
void check_heads(const BlockCase& test, const BlockCaseData& data, const GuardedOutputs& outputs) {
  for (std::int32_t head = 0; head < test.heads_kv; ++head) {
    const std::vector<std::uint16_t> matrix = counts_of(test, data, head);
    outputs.check_head(data.dense(head), reference::counts_of(matrix, test.rows_k), head, false);
  }
}

void check_case(const BlockCase& test) {
  SCOPED_TRACE(::testing::Message() << test);
  const BlockCaseData data(test);
  GuardedOutputs outputs = outputs_of(test);
  const ForwardArgs args = args_of(data, outputs);
  ASSERT_EQ(block_mask_refusal(args, mask_of(test, data)), "");
  run(test, args, mask_of(test, data));
  outputs.download_sync();
  check_heads(test, data, outputs);
  GuardedOutputs again = outputs_of(test);
  run(test, args_of(data, again), mask_of(test, data));
  again.download_sync();
  expect_same_outputs(outputs, again);
}

TEST_F(BlockMaskTest, AgreesWithFloat64) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    ASSERT_NO_FATAL_FAILURE(check_case(random_block_case(seed)));
  }
}

TEST_F(BlockMaskTest, AgreesAtTheUsualBlocks) {
  std::uint64_t seed = 1;
  for (const bool is_causal : {false, true}) {
    for (const auto& [q_block, k_block] :
         std::vector<std::pair<int, int>>{{128, 128}, {64, 64}, {16, 64}, {256, 256}, {64, 16}}) {
      BlockCase test{.rows_q = 700, .rows_k = 1100, .heads_q = 16, .seed = ++seed};
      test.q_block = q_block;
      test.k_block = k_block;
      test.is_causal = is_causal;
      ASSERT_NO_FATAL_FAILURE(check_case(test));
    }
  }
}

/// What nobody sees is not read: NaN there reaches no result.
TEST_F(BlockMaskTest, DoesNotReadWhatNobodySees) {
  for (const std::int32_t k_block : {16, 48, 64, 128, 192}) {
    BlockCase test{.rows_k = 1000, .k_block = k_block, .mask_heads = 1, .percent = 20};
    SCOPED_TRACE(::testing::Message() << test);
    BlockCaseData data(test);
    for (std::int32_t j = 0; j < test.rows_k; ++j) {
      bool is_seen = false;
      for (std::int32_t block = 0; block < test.num_q(); ++block) {
        is_seen |= data.visible[static_cast<std::size_t>(block * test.num_k() + j / k_block)] > 0;
      }
      for (std::int32_t head = 0; head < test.heads_kv && !is_seen; ++head) {
        for (std::int32_t d = 0; d < 128; ++d) {
          data.k.set(j, head, d, NAN);
          data.v.set(j, head, d, NAN);
        }
      }
    }
    data.k.upload_sync();
    data.v.upload_sync();
    GuardedOutputs outputs = outputs_of(test);
    run(test, args_of(data, outputs), mask_of(test, data));
    outputs.download_sync();
    for (const double value : values_of(outputs.out)) ASSERT_TRUE(std::isfinite(value));
  }
}

TEST_F(BlockMaskTest, TooLittleRoomGivesNan) {
  const BlockCase test{.rows_q = 300, .rows_k = 700, .percent = 50};
  const BlockCaseData data(test);
  const DeviceBuffer word(2 * sizeof(std::int64_t));
  // Of both heads; the forward takes both together.
  const std::int64_t num_blocks = std::count(data.visible.begin(), data.visible.end(), 1);
  const std::int64_t half = num_blocks / 2;
  const auto word_of = [&](const BlockMask& mask, bool is_short) {
    GuardedOutputs outputs = outputs_of(test);
    run(test, args_of(data, outputs), mask);
    outputs.download_sync();
    for (const GuardedTensor* result : {&outputs.out, &outputs.lse}) {
      EXPECT_TRUE(result->has_whole_guards());
      for (const double value : values_of(*result)) EXPECT_EQ(std::isnan(value), is_short);
    }
    return to_host_sync<std::int64_t>(word.data(), 2).front();
  };
  BlockMask mask = mask_of(test, data);
  mask.error_word = static_cast<std::int64_t*>(word.data());
  mask.max_blocks = half + 1;
  EXPECT_EQ(word_of(mask, false), 0);
  mask.max_blocks = half - 1;
  EXPECT_EQ(word_of(mask, true), num_blocks - 2 * (half - 1));
  mask.max_blocks = 0;
  mask.max_runs = 1;
  EXPECT_GT(word_of(mask, true), 1);
}

TEST_F(BlockMaskTest, TheErrorWordIsWrittenWithoutRowsToo) {
  const BlockCase test{.rows_q = 0};
  const BlockCaseData data(test);
  GuardedOutputs outputs = outputs_of(test);
  const DeviceBuffer word(2 * sizeof(std::int64_t));
  word.fill(0x55, nullptr);
  BlockMask mask = mask_of(test, data);
  mask.error_word = static_cast<std::int64_t*>(word.data());
  run(test, args_of(data, outputs), mask);
  EXPECT_EQ(to_host_sync<std::int64_t>(word.data(), 2), (std::vector<std::int64_t>{0, -1}));
}

TEST_F(BlockMaskTest, ReplaysAGraphWithAnotherMask) {
  const BlockCase test{.rows_q = 500, .rows_k = 800, .is_causal = true};
  const BlockCaseData data(test);
  GuardedOutputs outputs = outputs_of(test);
  const ForwardArgs args = args_of(data, outputs);
  const BlockMask mask = mask_of(test, data);
  const DeviceBuffer memory(static_cast<std::size_t>(forward_workspace_bytes(args, mask)));
  const DeviceWorkspace workspace{memory.data(), static_cast<std::int64_t>(memory.size_bytes())};
  const Stream stream;
  const Graph graph(stream.handle(),
                    [&] { attention_forward_cuda(args, mask, workspace, {}, stream.handle()); });
  for (std::uint64_t round = 0; round < 5; ++round) {
    BlockCase other = test;
    other.percent = 20 * static_cast<std::int32_t>(round);
    other.seed = round;
    const BlockCaseData drawn(other);
    BlockCaseData expected(test);
    expected.visible = drawn.visible;
    cuda_check(cudaMemcpy(data.on_device.data(), drawn.visible.data(), drawn.visible.size(),
                          cudaMemcpyHostToDevice),
               "cudaMemcpy");
    graph.launch(nullptr);
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    outputs.download_sync();
    check_heads(test, expected, outputs);
  }
}

TEST_F(BlockMaskTest, RefusesWhatTheKernelsDoNotTake) {
  const BlockCase test;
  const BlockCaseData data(test);
  const GuardedOutputs outputs = outputs_of(test);
  const ForwardArgs args = args_of(data, outputs);
  const BlockMask good = mask_of(test, data);
  BlockMask mask = good;
  mask.k_block = 24;
  EXPECT_EQ(block_mask_refusal(args, mask), "k_block is 24; allowed: multiples of 16");
  EXPECT_THROW(forward_workspace_bytes(args, mask), InvalidArgument);
  mask = good;
  mask.q_block = 20;
  EXPECT_NE(block_mask_refusal(args, mask), "");
  mask = good;
  mask.heads = 7;
  EXPECT_THROW(block_mask_refusal(args, mask), InvalidArgument);
  ForwardArgs capped = args;
  capped.params.softcap = 10.0;
  EXPECT_NE(block_mask_refusal(capped, good), "");
}

}  // namespace
}  // namespace magi::test
