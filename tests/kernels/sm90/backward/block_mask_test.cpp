// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/schedule/blocks/block_grid.hpp"
#include "kernels/sm90/block_case.hpp"
#include "magi/error.hpp"
#include "support/gpu/gpu_test.hpp"

namespace magi::test {
namespace {

using BlockMaskBackwardTest = GpuTest;

/// What the backward reads besides the inputs, and what it writes.
struct Gradients : GuardedGradients {
  Gradients(const BlockCase& test, const BlockCaseData& data) : Gradients(test, data, test.type) {}
  /// With gradients of another type.
  Gradients(const BlockCase& test, const BlockCaseData& data, DType type)
      : GuardedGradients(test.shape(), type),
        out(test.type, test.rows_q, test.heads_q, test.dim_v, test.layout),
        lse(DType::Float32, test.rows_q, test.heads_q, 1),
        dout(test.type, test.rows_q, test.heads_q, test.dim_v, test.layout),
        dlse(DType::Float32, test.rows_q, test.heads_q, 1) {
    RandomStream random(test.seed + 2000);
    fill_random(dout, random, 1.0);
    fill_random(dlse, random, 1.0);
    data.put_into(args);
    put_into(args);
    args.out = out.view();
    args.lse = lse.view(2);
    args.dout = dout.view();
    args.dlse = dlse.view(2);
  }

  GuardedTensor out, lse, dout, dlse;
  BackwardArgs args;
};

/// out and lse of float64, rounded to their types.
void fill_results(const BlockCase& test, const BlockCaseData& data, Gradients& gradients) {
  const std::int32_t heads = test.heads_q / test.heads_kv;
  for (std::int32_t kv_head = 0; kv_head < test.heads_kv; ++kv_head) {
    const std::vector<std::uint16_t> matrix = counts_of(test, data, kv_head);
    const reference::DenseOutput truth =
        dense_forward(data.dense(kv_head), reference::counts_of(matrix, test.rows_k));
    set_heads(gradients.out, kv_head * heads, heads, truth.out);
    set_heads(gradients.lse, kv_head * heads, heads, truth.lse);
  }
  gradients.out.upload_sync();
  gradients.lse.upload_sync();
}

/// Runs in a workspace full of poison.
void run(const BlockMask& mask, Gradients& gradients, bool is_deterministic = false) {
  const DeviceBuffer memory(
      static_cast<std::size_t>(backward_workspace_bytes(gradients.args, mask, is_deterministic)));
  memory.fill(0xff, nullptr);
  attention_backward_cuda(gradients.args, mask,
                          {memory.data(), static_cast<std::int64_t>(memory.size_bytes())},
                          {.is_deterministic = is_deterministic}, nullptr);
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  gradients.download_sync();
}

void check_head(const BlockCase& test, const BlockCaseData& data, const Gradients& seen,
                std::int32_t kv_head) {
  const std::int32_t heads = test.heads_q / test.heads_kv;
  const auto of_queries = [&](const GuardedTensor& tensor) {
    return heads_of(tensor, kv_head * heads, heads);
  };
  const std::vector<std::uint16_t> matrix = counts_of(test, data, kv_head);
  const GradientRule rule(data.dense(kv_head), reference::counts_of(matrix, test.rows_k), test.type,
                          {of_queries(seen.dout), of_queries(seen.dlse), of_queries(seen.out)});
  rule.check_head(seen, kv_head);
}

void check_case(const BlockCase& test, bool is_deterministic = false) {
  SCOPED_TRACE(::testing::Message() << test << (is_deterministic ? ", deterministic" : ""));
  const BlockCaseData data(test);
  Gradients gradients(test, data);
  fill_results(test, data, gradients);
  run(mask_of(test, data), gradients, is_deterministic);
  ASSERT_TRUE(gradients.has_whole_guards());
  for (std::int32_t head = 0; head < test.heads_kv; ++head) {
    check_head(test, data, gradients, head);
  }
  Gradients again(test, data);
  fill_results(test, data, again);
  run(mask_of(test, data), again, is_deterministic);
  expect_same_but_dq(gradients, again);
  if (is_deterministic) expect_same_bits(gradients.dq, again.dq);
}

TEST_F(BlockMaskBackwardTest, AgreesWithFloat64) {
  for (std::uint64_t seed = 1; seed <= 40 && !HasFailure(); ++seed) {
    check_case(random_block_case(seed));
  }
}

TEST_F(BlockMaskBackwardTest, DeterministicOnesAgree) {
  for (std::uint64_t seed = 101; seed <= 120 && !HasFailure(); ++seed) {
    check_case(random_block_case(seed), true);
  }
}

TEST_F(BlockMaskBackwardTest, AgreesAtTheUsualBlocks) {
  std::uint64_t seed = 1;
  for (const bool is_causal : {false, true}) {
    for (const auto& [q_block, k_block] :
         std::vector<std::pair<int, int>>{{128, 128}, {64, 64}, {16, 64}, {256, 256}, {64, 16}}) {
      BlockCase test{.rows_q = 300, .rows_k = 700, .heads_q = 16, .seed = ++seed};
      test.q_block = q_block;
      test.k_block = k_block;
      test.is_causal = is_causal;
      check_case(test);
      check_case(test, true);
    }
  }
}

/// Makes the rows that a head of the mask leaves out NaN: keys of blocks that no block of queries
/// reaches, and queries of blocks that reach none.
void poison_unseen(const BlockCase& test, BlockCaseData& data, GuardedTensor& dout) {
  const std::int32_t heads_per_kv = test.heads_q / test.heads_kv;
  const BlockGrid grid{.rows_q = test.rows_q,
                       .rows_k = test.rows_k,
                       .q_block = test.q_block,
                       .k_block = test.k_block,
                       .is_causal = test.is_causal};
  const auto poison = [](GuardedTensor& tensor, std::int32_t row, std::int32_t head) {
    for (std::int64_t d = 0; d < tensor.dim(); ++d) tensor.set(row, head, d, std::nan(""));
  };
  for (std::int32_t kv_head = 0; kv_head < test.heads_kv; ++kv_head) {
    std::vector<bool> queries(static_cast<std::size_t>(test.num_q()));
    std::vector<bool> keys(static_cast<std::size_t>(test.num_k()));
    const std::int32_t first = (test.mask_heads == 1 ? 0 : kv_head) * test.num_q();
    for (std::int32_t i = 0; i < test.num_q(); ++i) {
      for (std::int32_t j = 0; j < std::min(test.num_k(), grid.num_reached(i)); ++j) {
        if (data.visible[static_cast<std::size_t>((first + i) * test.num_k() + j)] == 0) continue;
        queries[static_cast<std::size_t>(i)] = keys[static_cast<std::size_t>(j)] = true;
      }
    }
    for (std::int32_t row = 0; row < test.rows_k; ++row) {
      if (keys[static_cast<std::size_t>(row / test.k_block)]) continue;
      poison(data.k, row, kv_head);
      poison(data.v, row, kv_head);
    }
    for (std::int32_t row = 0; row < test.rows_q; ++row) {
      if (queries[static_cast<std::size_t>(row / test.q_block)]) continue;
      for (std::int32_t head = kv_head * heads_per_kv; head < (kv_head + 1) * heads_per_kv;
           ++head) {
        poison(data.q, row, head);
        poison(dout, row, head);
      }
    }
  }
  for (GuardedTensor* tensor : {&data.q, &data.k, &data.v, &dout}) tensor->upload_sync();
}

TEST_F(BlockMaskBackwardTest, WhatNobodySeesMayBeNan) {
  for (std::uint64_t seed = 201; seed <= 230 && !HasFailure(); ++seed) {
    BlockCase test = random_block_case(seed);
    test.percent = 10;
    for (const bool is_deterministic : {false, true}) {
      SCOPED_TRACE(::testing::Message() << test << (is_deterministic ? ", deterministic" : ""));
      BlockCaseData data(test);
      Gradients expected(test, data);
      Gradients gradients(test, data);
      fill_results(test, data, expected);
      fill_results(test, data, gradients);
      run(mask_of(test, data), expected, is_deterministic);
      poison_unseen(test, data, gradients.dout);
      run(mask_of(test, data), gradients, is_deterministic);
      expect_same_but_dq(gradients, expected);
      if (is_deterministic) expect_same_bits(gradients.dq, expected.dq);
      for (const GuardedTensor* tensor : {&gradients.dq, &gradients.dk, &gradients.dv}) {
        for (const double value : values_of(*tensor)) ASSERT_TRUE(std::isfinite(value));
      }
    }
  }
}

TEST_F(BlockMaskBackwardTest, FloatGradientsAreAddedTo) {
  const BlockCase test{.rows_q = 300, .rows_k = 500};
  const BlockCaseData data(test);
  Gradients fresh(test, data, DType::Float32);
  Gradients added(test, data, DType::Float32);
  for (GuardedTensor* tensor : {&added.dq, &added.dk, &added.dv}) {
    RandomStream ones(1);
    fill_random(*tensor, ones, 0.0);
    for (std::int64_t row = 0; row < tensor->rows(); ++row) tensor->set(row, 0, 0, 1.0);
    tensor->upload_sync();
  }
  added.args.is_accumulating = true;
  for (Gradients* gradients : {&fresh, &added}) {
    fill_results(test, data, *gradients);
    run(mask_of(test, data), *gradients, true);
  }
  const auto expect_added = [](const GuardedTensor& sum, const GuardedTensor& part) {
    for (std::int64_t row = 0; row < sum.rows(); ++row) {
      EXPECT_FLOAT_EQ(static_cast<float>(sum.get(row, 0, 0)),
                      1.0f + static_cast<float>(part.get(row, 0, 0)));
      EXPECT_EQ(sum.get(row, 1, 5), part.get(row, 1, 5));
    }
  };
  expect_added(added.dq, fresh.dq);
  expect_added(added.dk, fresh.dk);
  expect_added(added.dv, fresh.dv);
}

/// `test` has more blocks than there is room for.
void check_room(const BlockCase& test) {
  const BlockCaseData data(test);
  BlockMask mask = mask_of(test, data);
  const DeviceBuffer word(2 * sizeof(std::int64_t));
  mask.error_word = static_cast<std::int64_t*>(word.data());
  for (const std::int64_t room : {0, 5}) {
    Gradients gradients(test, data);
    fill_results(test, data, gradients);
    mask.max_blocks = room;
    word.fill(0x11, nullptr);
    run(mask, gradients);
    const auto told = to_host_sync<std::int64_t>(word.data(), 2);
    constexpr std::int64_t kKept = 0x1111111111111111;
    if (room == 0) {
      EXPECT_EQ(told, (std::vector<std::int64_t>{kKept, kKept}));
    } else {
      EXPECT_GT(told[0], 0);
      EXPECT_LT(told[0], kKept);
      EXPECT_EQ(told[1], -1);
    }
    for (const GuardedTensor* tensor : {&gradients.dq, &gradients.dk, &gradients.dv}) {
      EXPECT_TRUE(tensor->has_whole_guards());
      for (const double value : values_of(*tensor)) ASSERT_EQ(std::isnan(value), room > 0);
    }
  }
}

TEST_F(BlockMaskBackwardTest, TooLittleRoomGivesNan) {
  for (const int k_block : {64, 128}) {
    check_room({.rows_q = 300, .rows_k = 700, .k_block = k_block, .percent = 50});
  }
}

TEST_F(BlockMaskBackwardTest, RefusesTheDeterministicModeWithASoftcap) {
  const BlockCase test;
  const BlockCaseData data(test);
  Gradients gradients(test, data);
  gradients.args.params.softcap = 10.0;
  EXPECT_THROW(attention_backward_cuda(gradients.args, mask_of(test, data), {},
                                       {.is_deterministic = true}, nullptr),
               InvalidArgument);
}

}  // namespace
}  // namespace magi::test
