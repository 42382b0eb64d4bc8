// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/attention_case.hpp"

// What must hold between runs, without a reference.
namespace magi::testing {
namespace {

using reference::DenseGradients;
using reference::DenseInput;
using reference::DenseOutput;
using reference::judge_exact;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// A case large enough for several threads, tiles and blocks.
AttentionCase large_case(std::uint64_t seed, DType dtype) {
  RandomStream random(seed);
  const RandomMaskOptions options{.min_rows = 500, .max_rows_q = 700, .max_rows_k = 700};
  return random_case(random, dtype, options);
}

/// Heads 4/2, dims 24/16, over the given mask.
AttentionCase small_case(std::uint64_t seed, DType dtype, const Mask& mask) {
  RandomStream random(seed);
  AttentionCase test;
  test.mask = mask;
  test.dtype = dtype;
  test.result_dtype = test.real();
  test.dense = {.rows_q = mask.rows_q,
                .rows_k = mask.rows_k,
                .heads_q = 4,
                .heads_kv = 2,
                .dim_qk = 24,
                .dim_v = 16};
  draw_values(random, test);
  return test;
}

struct Everything {
  ForwardResult forward;
  DenseGradients grads;

  void expect_same_bits(const Everything& other) const {
    EXPECT_EQ(forward.out, other.forward.out);
    EXPECT_EQ(forward.lse, other.forward.lse);
    EXPECT_EQ(forward.max_logits, other.forward.max_logits);
    EXPECT_EQ(grads.dq, other.grads.dq);
    EXPECT_EQ(grads.dk, other.grads.dk);
    EXPECT_EQ(grads.dv, other.grads.dv);
    EXPECT_EQ(grads.dsink, other.grads.dsink);
  }
};

Everything run_all(const AttentionCase& test) {
  const ForwardResult forward = run_forward(test);
  return {forward, run_backward(test, {forward.out, forward.lse, forward.max_logits})};
}

TEST(CpuInvariance, ResultsDoNotDependOnTheThreadCount) {
  const std::int32_t before = cpu::set_num_threads(1);
  const Mask causal{700, 700, {{0, 700, 0, 700, -kBandInfinity, 0}}};
  for (const DType dtype : {DType::Float32, DType::Float64}) {
    for (const AttentionCase& test : {small_case(1, dtype, causal), large_case(2, dtype)}) {
      SCOPED_TRACE(test.describe());
      cpu::set_num_threads(1);
      const Everything alone = run_all(test);
      for (const int num_threads : {2, 5}) {
        cpu::set_num_threads(num_threads);
        run_all(test).expect_same_bits(alone);
      }
    }
  }
  cpu::set_num_threads(before);
}

/// Rows [begin, end) of `array` become NaN.
void poison_rows(std::vector<double>& array, std::int32_t num_rows, std::int32_t begin,
                 std::int32_t end) {
  const std::size_t row = array.size() / static_cast<std::size_t>(num_rows);
  for (std::size_t i = static_cast<std::size_t>(begin) * row;
       i < static_cast<std::size_t>(end) * row; ++i) {
    array[i] = kNan;
  }
}

std::vector<double> rows_of(const std::vector<double>& array, std::int32_t num_rows, Range rows) {
  const auto row = static_cast<std::ptrdiff_t>(array.size()) / num_rows;
  return {array.begin() + rows.begin * row, array.begin() + rows.end * row};
}

/// Queries and keys 40 to 70 are NaN and outside every slice of the first document's rows, in the
/// same blocks as rows that are seen.
TEST(CpuInvariance, NanInRowsOutOfSightDoesNotLeak) {
  const Mask mask{
      100, 100, {{0, 40, 0, 40, -kBandInfinity, 0}, {40, 70, 40, 70}, {70, 100, 70, 100, -5, 5}}};
  for (const DType dtype : {DType::Float32, DType::Float64, DType::BFloat16}) {
    AttentionCase test = small_case(1, dtype, mask);
    const Everything clean = run_all(test);
    for (auto* array : {&test.dense.q, &test.dense.k, &test.dense.v, &test.dout}) {
      poison_rows(*array, 100, 40, 70);
    }
    const Everything poisoned = run_all(test);
    for (const Range rows : {Range{0, 40}, Range{70, 100}}) {
      const auto same = [&](const std::vector<double>& a, const std::vector<double>& b) {
        EXPECT_EQ(rows_of(a, 100, rows), rows_of(b, 100, rows)) << dtype_name(dtype);
      };
      same(clean.forward.out, poisoned.forward.out);
      same(clean.forward.lse, poisoned.forward.lse);
      same(clean.grads.dq, poisoned.grads.dq);
      same(clean.grads.dk, poisoned.grads.dk);
      same(clean.grads.dv, poisoned.grads.dv);
    }
    for (const double lse : rows_of(poisoned.forward.lse, 100, {40, 70})) {
      EXPECT_TRUE(std::isnan(lse));
    }
  }
}

/// With sinks a row without keys has a finite lse, and a share in dsink.
TEST(CpuInvariance, NanInDoutOfARowWithoutKeysDoesNotLeakIntoSinks) {
  AttentionCase test = small_case(9, DType::Float32, {30, 30, {{10, 20, 0, 30}}});
  test.dense.num_sinks = 1;
  test.dense.sink.assign(4, 0.5);
  const Everything clean = run_all(test);
  poison_rows(test.dout, 30, 20, 30);
  run_all(test).expect_same_bits(clean);
}

/// Causal: a NaN in the last key reaches the last query only, one in the first query the first key
/// only, although all share their blocks and strips.
TEST(CpuInvariance, NanBeyondTheDiagonalDoesNotLeak) {
  const Mask mask{20, 20, {{0, 20, 0, 20, -kBandInfinity, 0}}};
  const AttentionCase test = small_case(2, DType::Float32, mask);
  const Everything clean = run_all(test);
  AttentionCase bad_key = test, bad_query = test;
  poison_rows(bad_key.dense.v, 20, 19, 20);
  poison_rows(bad_key.dense.k, 20, 19, 20);
  poison_rows(bad_query.dense.q, 20, 0, 1);
  poison_rows(bad_query.dout, 20, 0, 1);
  const Everything by_key = run_all(bad_key), by_query = run_all(bad_query);
  EXPECT_EQ(rows_of(clean.forward.out, 20, {0, 19}), rows_of(by_key.forward.out, 20, {0, 19}));
  EXPECT_EQ(rows_of(clean.grads.dq, 20, {0, 19}), rows_of(by_key.grads.dq, 20, {0, 19}));
  EXPECT_EQ(rows_of(clean.grads.dk, 20, {1, 20}), rows_of(by_query.grads.dk, 20, {1, 20}));
  EXPECT_EQ(rows_of(clean.grads.dv, 20, {1, 20}), rows_of(by_query.grads.dv, 20, {1, 20}));
  EXPECT_TRUE(std::isnan(by_key.forward.out.back()));
  EXPECT_TRUE(std::isnan(by_key.grads.dq.back()));
  EXPECT_TRUE(std::isnan(by_query.grads.dv.front()));
}

TEST(CpuInvariance, RowsWithoutKeysGiveZeroAndMinusInfinity) {
  for (const DType dtype : {DType::Float32, DType::Float64, DType::Float16}) {
    const AttentionCase test = small_case(3, dtype, {30, 30, {{10, 12, 0, 30}}});
    const Everything all = run_all(test);
    for (const Range rows : {Range{0, 10}, Range{12, 30}}) {
      for (const double value : rows_of(all.forward.out, 30, rows)) EXPECT_EQ(value, 0);
      for (const double value : rows_of(all.forward.lse, 30, rows)) EXPECT_TRUE(value < -1e308);
      for (const double value : rows_of(all.grads.dq, 30, rows)) EXPECT_EQ(value, 0);
    }
    for (const auto* array : {&all.grads.dq, &all.grads.dk, &all.grads.dv}) {
      EXPECT_TRUE(std::all_of(array->begin(), array->end(), [](double x) { return x == x; }));
    }
  }
}

TEST(CpuInvariance, NoSlicesAndNoRows) {
  const AttentionCase idle = small_case(4, DType::Float32, {5, 7, {}});
  const Everything all = run_all(idle);
  EXPECT_EQ(all.forward.out, std::vector<double>(all.forward.out.size(), 0.0));
  EXPECT_EQ(all.grads.dk, std::vector<double>(all.grads.dk.size(), 0.0));
  EXPECT_TRUE(run_all(small_case(5, DType::Float32, {0, 7, {}})).forward.out.empty());
  EXPECT_EQ(run_all(small_case(6, DType::Float32, {5, 0, {}})).forward.lse.size(), 20U);
}

/// Rows appended that nobody sees, between NaN-free neighbours, and that see nobody.
TEST(CpuInvariance, FullyMaskedTokensChangeNothingBitwise) {
  const Mask mask{150, 150, {{0, 90, 0, 90, -kBandInfinity, 0}, {90, 150, 20, 150, -30, 30}}};
  const AttentionCase test = small_case(7, DType::Float32, mask);
  AttentionCase longer = test;
  longer.mask.rows_q = longer.mask.rows_k = 200;
  longer.dense.rows_q = longer.dense.rows_k = 200;
  const auto pad = [](std::vector<double>& array) { array.resize(array.size() / 150 * 200, 0.7); };
  for (auto* array : {&longer.dense.q, &longer.dense.k, &longer.dense.v, &longer.dout}) pad(*array);
  Everything cut = run_all(longer);
  for (auto* array :
       {&cut.forward.out, &cut.forward.lse, &cut.grads.dq, &cut.grads.dk, &cut.grads.dv}) {
    *array = rows_of(*array, 200, {0, 150});
  }
  cut.expect_same_bits(run_all(test));
}

/// A slice per pair: as many records as pairs.
TEST(CpuInvariance, HundredsOfThousandsOfSlices) {
  Mask mask{500, 500, {}};
  for (std::int32_t i = 0; i < 500; ++i) {
    for (std::int32_t j = 0; j < 500; ++j) mask.slices.push_back({i, i + 1, j, j + 1});
  }
  const AttentionCase many = small_case(10, DType::Float32, mask);
  const AttentionCase one = small_case(10, DType::Float32, {500, 500, {{0, 500, 0, 500}}});
  const ForwardResult a = run_forward(many), b = run_forward(one);
  EXPECT_TRUE(judge_exact(a.out, b.out, DType::Float32).holds());
  EXPECT_TRUE(judge_exact(a.lse, b.lse, DType::Float32).holds());
}

/// Merging a call that sees nothing leaves every bit of the earlier result.
TEST(CpuInvariance, MergingNothingChangesNothing) {
  const AttentionCase test = small_case(11, DType::Float32, {40, 40, {{5, 40, 0, 30, -9, 9}}});
  EXPECT_EQ(run_merged(test, {test.mask.slices, {}}, 0), run_forward(test));
}

}  // namespace
}  // namespace magi::testing
