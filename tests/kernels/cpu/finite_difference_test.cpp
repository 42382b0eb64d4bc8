// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/attention_case.hpp"

// Gradients of the kernels against slopes of the kernels, in float64.
namespace magi::testing {
namespace {

double loss(const AttentionCase& test) {
  const ForwardResult result = run_forward(test);
  double sum = 0;
  for (std::size_t i = 0; i < result.out.size(); ++i) sum += test.dout[i] * result.out[i];
  for (std::size_t i = 0; i < test.dlse.size(); ++i) {
    if (std::isfinite(result.lse[i])) sum += test.dlse[i] * result.lse[i];
  }
  return sum;
}

void expect_slopes(const AttentionCase& test, std::vector<double> reference::DenseInput::*array,
                   const std::vector<double>& gradient, const char* name) {
  constexpr double kStep = 1e-6;
  for (std::size_t i = 0; i < gradient.size(); i += 3) {
    AttentionCase up = test, down = test;
    (up.dense.*array)[i] += kStep;
    (down.dense.*array)[i] -= kStep;
    EXPECT_NEAR(gradient[i], (loss(up) - loss(down)) / (2 * kStep), 2e-8) << name << " " << i;
  }
}

TEST(CpuFiniteDifferences, SlopesOfEveryInput) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    RandomStream random(seed);
    const RandomMaskOptions options{
        .min_rows = 3, .max_rows_q = 9, .max_rows_k = 9, .max_slices = 4};
    AttentionCase test = random_case(random, DType::Float64, options);
    test.dense.heads_kv = 1;
    test.dense.heads_q = 2;
    test.dense.dim_qk = 3;
    test.dense.dim_v = 2;
    test.dense.num_sinks = 1 + static_cast<std::int32_t>(seed % 2);
    test.dlse.resize(1);
    draw_values(random, test);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + test.describe());
    const ForwardResult result = run_forward(test);
    const auto grads = run_backward(test, {result.out, result.lse, result.max_logits});
    expect_slopes(test, &reference::DenseInput::q, grads.dq, "dq");
    expect_slopes(test, &reference::DenseInput::k, grads.dk, "dk");
    expect_slopes(test, &reference::DenseInput::v, grads.dv, "dv");
    expect_slopes(test, &reference::DenseInput::sink, grads.dsink, "dsink");
  }
}

}  // namespace
}  // namespace magi::testing
