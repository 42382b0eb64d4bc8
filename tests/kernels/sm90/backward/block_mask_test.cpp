// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/schedule/blocks/block_grid.hpp"
#include "kernels/sm90/block_case.hpp"
#include "magi/error.hpp"
#include "reference/error_rule.hpp"
#include "support/gpu/gpu_test.hpp"

namespace magi::test {
namespace {

using BlockMaskBackwardTest = GpuTest;

/// What the backward reads besides the inputs, and what it writes.
struct Gradients {
  Gradients(const BlockCase& test, const BlockCaseData& data) : Gradients(test, data, test.type) {}
  /// With gradients of another type.
  Gradients(const BlockCase& test, const BlockCaseData& data, DType type)
      : out(test.type, test.rows_q, test.heads_q, test.dim_v, test.layout),
        lse(DType::Float32, test.rows_q, test.heads_q, 1),
        dout(test.type, test.rows_q, test.heads_q, test.dim_v, test.layout),
        dlse(DType::Float32, test.rows_q, test.heads_q, 1),
        dq(type, test.rows_q, test.heads_q, test.dim_qk, test.layout),
        dk(type, test.rows_k, test.heads_kv, test.dim_qk, test.layout),
        dv(type, test.rows_k, test.heads_kv, test.dim_v, test.layout),
        dsink(DType::Float32, 1, std::max(test.num_sinks, 1), test.heads_q) {
    RandomStream random(test.seed + 2000);
    fill_random(dout, random, 1.0);
    fill_random(dlse, random, 1.0);
    for (GuardedTensor* tensor : {&dq, &dk, &dv, &dsink}) tensor->upload_sync();
    args.q = data.q.view();
    args.k = data.k.view();
    args.v = data.v.view();
    args.out = out.view();
    args.lse = lse.view(2);
    args.dout = dout.view();
    args.dlse = dlse.view(2);
    args.dq = dq.view();
    args.dk = dk.view();
    args.dv = dv.view();
    if (!data.sink) return;
    args.sink = sink_view(*data.sink, SinkLayout::SinkHead);
    args.dsink = sink_view(dsink, SinkLayout::SinkHead);
  }
  void download_sync() {
    for (GuardedTensor* tensor : {&dq, &dk, &dv, &dsink}) tensor->download_sync();
  }

  GuardedTensor out, lse, dout, dlse, dq, dk, dv, dsink;
  BackwardArgs args;
};

/// out and lse of float64, rounded to their types.
void fill_results(const BlockCase& test, const BlockCaseData& data, Gradients& gradients) {
  const std::int32_t heads = test.heads_q / test.heads_kv;
  for (std::int32_t kv_head = 0; kv_head < test.heads_kv; ++kv_head) {
    const std::vector<std::uint16_t> matrix = counts_of(test, data, kv_head);
    const reference::DenseOutput truth =
        dense_forward(dense_of(test, data, kv_head), reference::counts_of(matrix, test.rows_k));
    std::size_t at = 0;
    for (std::int32_t row = 0; row < test.rows_q; ++row) {
      for (std::int32_t head = kv_head * heads; head < (kv_head + 1) * heads; ++head) {
        const auto row_and_head = static_cast<std::size_t>(row * heads + head - kv_head * heads);
        gradients.lse.set(row, head, 0, truth.lse[row_and_head]);
        for (std::int32_t d = 0; d < test.dim_v; ++d) {
          gradients.out.set(row, head, d, truth.out[at++]);
        }
      }
    }
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

/// The worse of a plain computation and of an exact one from the stored out.
std::vector<double> worse(const std::vector<double>& truth, const std::vector<double>& plain,
                          const std::vector<double>& stored) {
  return reference::max_error(stored, truth) > reference::max_error(plain, truth) ? stored : plain;
}

void expect_close(const BlockCase& test, const std::vector<double>& seen,
                  const std::vector<double>& truth, const std::vector<double>& plain, double noise,
                  const char* name) {
  reference::Decision decision = reference::judge_rounded(seen, truth, plain, test.type);
  decision.allowed += noise;
  EXPECT_TRUE(decision.holds()) << name << ": " << decision.text();
}

void check_head(const BlockCase& test, const BlockCaseData& data, const Gradients& seen,
                std::int32_t kv_head) {
  SCOPED_TRACE(::testing::Message() << "kv head " << kv_head);
  const std::int32_t heads = test.heads_q / test.heads_kv;
  const std::int32_t first = kv_head * heads;
  const reference::DenseInput in = dense_of(test, data, kv_head);
  const std::vector<std::uint16_t> matrix = counts_of(test, data, kv_head);
  const auto counts = reference::counts_of(matrix, test.rows_k);
  const std::vector<double> dout = heads_of(seen.dout, first, heads);
  const std::vector<double> dlse = heads_of(seen.dlse, first, heads);
  const reference::DenseOutput out = dense_forward(in, counts);
  const reference::DenseGradients truth = dense_backward(in, counts, out, dout, dlse);
  reference::DenseInput rounding = in;
  rounding.rounding = reference::rounding_of(test.type);
  const reference::DenseGradients plain =
      dense_backward(rounding, counts, dense_forward(rounding, counts), dout, dlse);
  reference::DenseOutput stored = out;
  for (double& value : stored.out) value = reference::rounded(value, rounding.rounding);
  const reference::DenseGradients exact = dense_backward(in, counts, stored, dout, dlse);
  const auto noise = [&](const std::vector<double>& factors) {
    return reference::cancelled_noise(in, dout, factors);
  };
  expect_close(test, heads_of(seen.dq, first, heads), truth.dq, worse(truth.dq, plain.dq, exact.dq),
               noise(in.k), "dq");
  expect_close(test, heads_of(seen.dk, kv_head, 1), truth.dk, worse(truth.dk, plain.dk, exact.dk),
               noise(in.q), "dk");
  expect_close(test, heads_of(seen.dv, kv_head, 1), truth.dv, plain.dv, 0.0, "dv");
  if (!data.sink) return;
  std::vector<double> dsink;
  for (std::int32_t s = 0; s < test.num_sinks; ++s) {
    for (std::int32_t h = 0; h < heads; ++h) dsink.push_back(seen.dsink.get(0, s, first + h));
  }
  expect_close(test, dsink, truth.dsink, worse(truth.dsink, plain.dsink, exact.dsink), noise({1.0}),
               "dsink");
}

void check_case(const BlockCase& test, bool is_deterministic = false) {
  SCOPED_TRACE(::testing::Message() << test << (is_deterministic ? ", deterministic" : ""));
  const BlockCaseData data(test);
  Gradients gradients(test, data);
  fill_results(test, data, gradients);
  run(mask_of(test, data), gradients, is_deterministic);
  for (const GuardedTensor* tensor : {&gradients.dq, &gradients.dk, &gradients.dv}) {
    ASSERT_TRUE(tensor->has_whole_guards());
  }
  for (std::int32_t head = 0; head < test.heads_kv; ++head) {
    check_head(test, data, gradients, head);
  }
  Gradients again(test, data);
  fill_results(test, data, again);
  run(mask_of(test, data), again, is_deterministic);
  expect_same_bits(gradients.dk, again.dk);
  expect_same_bits(gradients.dv, again.dv);
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
      expect_same_bits(gradients.dk, expected.dk);
      expect_same_bits(gradients.dv, expected.dv);
      if (is_deterministic) expect_same_bits(gradients.dq, expected.dq);
      if (data.sink) expect_same_bits(gradients.dsink, expected.dsink);
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
