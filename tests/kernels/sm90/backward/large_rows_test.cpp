// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <numbers>
#include <vector>

#include "kernels/sm90/backward/case.hpp"
#include "kernels/sm90/backward/prepare.hpp"
#include "support/gpu/gpu_test.hpp"

// Rows whose logits are so large that a float32 lse does not hold the logarithm of their sum.
namespace magi::test {
namespace {

using BackwardLargeRowTest = GpuTest;

/// Whose out and lse the backward is given.
enum class Forward : std::uint8_t { Float64, OnGpu };

/// NOTE: the forward's scores are rounded to float32. At logits of L it takes keys within about L *
/// 2^-21 of each other for equal or in the wrong order, which random rows seldom have.
void check_gradients(const BackwardCase& test, Forward forward) {
  SCOPED_TRACE(::testing::Message() << test);
  BackwardInputs inputs(test);
  if (forward == Forward::OnGpu) take_forward_sync(test, inputs);
  const auto judge = make_judge(test, inputs);
  BackwardOutputs outputs(test);
  run_backward_sync(test, inputs, outputs);
  judge(outputs, Gradients::All);
  BackwardOutputs again(test);
  run_backward_sync(test, inputs, again);
  expect_same_gradients(outputs, again);
}

/// Whether a score that has a share in its row is the small difference of products so large that
/// their sum in float32 does not hold it to a weight's 8 bits. Its row is not large: the lse, small
/// as well, is as exact as can be, and the forward's sums are no better than the backward's.
bool has_cancelled_scores(const BackwardInputs& inputs, DType type) {
  constexpr double kLargestSize = 0x1p16;
  constexpr double kLeastWeight = 0x1p-24;
  const reference::DenseInput& in = inputs.dense;
  const std::int32_t group = in.heads_q / in.heads_kv;
  const auto at = [&](std::int64_t row, std::int32_t heads, std::int32_t head) {
    return static_cast<std::size_t>((row * heads + head) * in.dim_qk);
  };
  for (std::size_t i = 0; i < inputs.dense_out.lse.size(); ++i) {
    const double lse = inputs.dense_out.lse[i];
    if (std::isinf(lse) || std::abs(lse) * std::numbers::log2e >= sm90::large_lse(type)) continue;
    const auto row = static_cast<std::int64_t>(i) / in.heads_q;
    const auto head = static_cast<std::int32_t>(static_cast<std::int64_t>(i) % in.heads_q);
    const double* q = in.q.data() + at(row, in.heads_q, head);
    for (std::int32_t key = 0; key < in.rows_k; ++key) {
      const double* k = in.k.data() + at(key, in.heads_kv, head / group);
      double sum = 0.0;
      double size = 0.0;
      for (std::int32_t d = 0; d < in.dim_qk; ++d) {
        sum += q[d] * k[d];
        size += std::abs(q[d] * k[d]);
      }
      const double scale = 1.0 / std::sqrt(in.dim_qk);
      const double weight = std::exp(scale * sum - lse);
      if (scale * size > kLargestSize && weight > kLeastWeight && weight < 2.0) return true;
    }
  }
  return false;
}

BackwardCase random_case(std::uint64_t seed, double largest, std::int32_t max_rows) {
  RandomStream random(seed);
  BackwardCase test;
  test.seed = seed;
  test.mask = random_mask(random, {.max_rows_q = max_rows, .max_rows_k = 200});
  test.heads_kv = random.between(1, 2);
  test.heads_q = test.heads_kv * random.between(1, 4);
  test.dim_qk = 8 * random.between(1, 16);
  test.dim_v = random.chance(50) ? test.dim_qk : 8 * random.between(1, 16);
  test.layout = static_cast<Layout>(random.between(0, 2));
  test.has_float_out = random.chance(25);
  test.has_float_gradients = random.chance(30);
  test.is_accumulating = random.chance(20);
  test.has_dlse = random.chance(50);
  test.num_sinks = random.chance(40) ? random.between(1, 8) : 0;
  test.params.sink_layout = random.chance(50) ? SinkLayout::SinkHead : SinkLayout::RowSinkHead;
  test.query_factor = std::exp2(std::floor(std::log2(largest / 3)));
  test.factor_every = random.between(1, 3);
  test.sink_factor = random.chance(50) ? test.query_factor : 1.0;
  test.num_equal_keys = random.chance(50) ? random.between(2, 4) : 1;
  return test;
}

TEST_F(BackwardLargeRowTest, GradientsKeepTheRuleUpToLogitsOfABillion) {
  std::uint64_t seed = 7000;
  int num_checked = 0;
  for (const double largest : {1e5, 1e6, 2e7, 1e8, 1e9}) {
    for (int i = 0; i < 24; ++i, ++seed) {
      const BackwardCase test = random_case(seed, largest, 150);
      if (has_cancelled_scores(BackwardInputs(test), test.type)) continue;
      ++num_checked;
      check_gradients(test, Forward::Float64);
      if (HasFailure()) return;
    }
  }
  EXPECT_GE(num_checked, 90);
}

TEST_F(BackwardLargeRowTest, TheForwardsResultsLeadToThem) {
  std::uint64_t seed = 8000;
  for (const double largest : {2e7, 1e8, 1e9}) {
    for (int i = 0; i < 6; ++i, ++seed) {
      check_gradients(random_case(seed, largest, 30), Forward::OnGpu);
      if (HasFailure()) return;
    }
  }
}

/// Of keys that are equal or counted several times each gets its share.
TEST_F(BackwardLargeRowTest, EqualKeysShareARow) {
  for (const std::int32_t dim : {64, 128, 200, 256}) {
    BackwardCase test;
    test.dim_qk = test.dim_v = dim;
    test.heads_q = 4;
    test.mask = {300, 300, {band_slice({0, 300}, {0, 300}, MaskType::Causal)}};
    test.mask.slices.push_back(band_slice({50, 200}, {0, 120}, MaskType::Full));
    test.query_factor = 0x1p28;
    test.num_equal_keys = 5;
    check_gradients(test, Forward::Float64);
    check_gradients(test, Forward::OnGpu);
    test.factor_every = 64;  // one row of a tile, others as usual
    check_gradients(test, Forward::Float64);
  }
}

TEST_F(BackwardLargeRowTest, SoftcapsAndFloat16) {
  BackwardCase test;
  test.mask = {200, 260, {band_slice({0, 200}, {0, 260}, MaskType::Causal)}};
  test.query_factor = 0x1p20;
  test.params.softcap = 0x1p21;
  check_gradients(test, Forward::Float64);
  test.params.softcap = 0.0;
  test.type = DType::Float16;
  test.query_factor = 4096.0;
  test.magnitude = 3.0;
  check_gradients(test, Forward::Float64);
}

/// Sinks of 1e30 and of +inf leave keys no weight.
TEST_F(BackwardLargeRowTest, SinksTakeAllWeight) {
  for (const SinkLayout layout : {SinkLayout::SinkHead, SinkLayout::RowSinkHead}) {
    BackwardCase test;
    test.mask = {200, 260, {band_slice({0, 200}, {0, 260}, MaskType::Causal)}};
    test.num_sinks = 2;
    test.has_dlse = true;
    test.params.sink_layout = layout;
    test.sink_factor = 1e30;
    check_gradients(test, Forward::OnGpu);
    test.sink_factor = 1.0;
    BackwardInputs inputs(test);
    for (std::int64_t row = 0; row < inputs.sink->rows(); ++row) {
      for (std::int64_t head = 0; head < test.heads_q; ++head) {
        inputs.sink->set(row, head % 2, head, head % 2 == 0 ? INFINITY : 3e38);
      }
    }
    inputs.sink->upload_sync();
    take_forward_sync(test, inputs);
    BackwardOutputs outputs(test);
    run_backward_sync(test, inputs, outputs);
    for (const double lse : values_of(inputs.lse)) ASSERT_EQ(lse, INFINITY);
    for (const GuardedTensor* zeros :
         {&inputs.out, &outputs.dq, &outputs.dk, &outputs.dv, outputs.dsink.get()}) {
      for (const double value : values_of(*zeros)) ASSERT_EQ(value, 0.0);
    }
  }
}

/// Parts of a row's keys in calls of their own, as over ranks: each takes its share by the lse.
TEST_F(BackwardLargeRowTest, PartsOfTheKeysShareARow) {
  BackwardCase whole;
  whole.mask = {130, 256, {band_slice({0, 130}, {0, 256}, MaskType::Full)}};
  whole.query_factor = 0x1p24;
  whole.is_accumulating = true;
  BackwardInputs inputs(whole);
  BackwardOutputs outputs(whole);
  for (const Range keys : {Range{0, 100}, Range{100, 256}}) {
    BackwardArgs args = inputs.args(whole);
    const std::vector<BandSlice> slices{band_slice({0, 130}, keys, MaskType::Full)};
    args.slices = slices;
    outputs.put_into(whole, args);
    const BackwardWork work(args, {});
    const GuardedWorkspace workspace(work.workspace_bytes());
    attention_backward_cuda(args, work, workspace.view(), nullptr);
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  outputs.download_sync();
  make_judge(whole, inputs)(outputs, Gradients::All);
}

}  // namespace
}  // namespace magi::test
