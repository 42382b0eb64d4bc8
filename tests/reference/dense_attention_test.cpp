// SPDX-License-Identifier: Apache-2.0
#include "reference/dense_attention.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace magi::reference {
namespace {

/// Two queries, three keys, one head of dimension 1.
DenseInput tiny_input() {
  return {.rows_q = 2,
          .rows_k = 3,
          .q = {1.0, -2.0},
          .k = {0.5, 1.5, -1.0},
          .v = {1.0, 2.0, 4.0},
          .params = {.softmax_scale = 1.0}};
}

TEST(DenseAttention, MatchesValuesWorkedByHand) {
  const Mask mask{2, 3, {{0, 1, 0, 2}}};
  const DenseOutput output = dense_forward(tiny_input(), counts_of(mask));
  const double a = std::exp(0.5), b = std::exp(1.5);
  EXPECT_NEAR(output.out[0], (a * 1 + b * 2) / (a + b), 1e-15);
  EXPECT_NEAR(output.lse[0], std::log(a + b), 1e-15);
  EXPECT_EQ(output.max_logits[0], 1.5);
  EXPECT_EQ(output.out[1], 0.0);
  EXPECT_EQ(output.lse[1], -std::numeric_limits<double>::infinity());
}

TEST(DenseAttention, APairInTwoSlicesCountsTwice) {
  const Mask mask{2, 3, {{0, 1, 0, 2}, {0, 1, 1, 2}}};
  const DenseOutput output = dense_forward(tiny_input(), counts_of(mask));
  const double a = std::exp(0.5), b = 2 * std::exp(1.5);
  EXPECT_NEAR(output.out[0], (a * 1 + b * 2) / (a + b), 1e-15);
}

TEST(DenseAttention, ASinkOnlyWidensTheDenominator) {
  DenseInput input = tiny_input();
  input.sink = {0.25};
  input.num_sinks = 1;
  const Mask mask{2, 3, {{0, 1, 0, 1}}};
  const DenseOutput output = dense_forward(input, counts_of(mask));
  const double a = std::exp(0.5), s = std::exp(0.25);
  EXPECT_NEAR(output.out[0], a / (a + s), 1e-15);
  EXPECT_NEAR(output.lse[1], 0.25, 1e-15);
  EXPECT_EQ(output.out[1], 0.0);
}

TEST(DenseAttention, MatrixAndMaskGiveTheSame) {
  const Mask mask{2, 3, {{0, 2, 0, 3, 0, 1}}};
  const std::vector<std::uint16_t> matrix = {1, 1, 0, 0, 1, 1};
  EXPECT_EQ(dense_forward(tiny_input(), counts_of(mask)).out,
            dense_forward(tiny_input(), counts_of(matrix, 3)).out);
}

/// A loss of all results with fixed weights.
double loss(const DenseInput& input, const Mask& mask, const std::vector<double>& dout,
            const std::vector<double>& dlse) {
  const DenseOutput output = dense_forward(input, counts_of(mask));
  double sum = 0;
  for (std::size_t i = 0; i < dout.size(); ++i) sum += dout[i] * output.out[i];
  for (std::size_t i = 0; i < dlse.size(); ++i) {
    if (std::isfinite(output.lse[i])) sum += dlse[i] * output.lse[i];
  }
  return sum;
}

void expect_slopes(const DenseInput& input, std::vector<double> DenseInput::*array,
                   const std::vector<double>& gradient,
                   const std::function<double(const DenseInput&)>& loss_of) {
  constexpr double kStep = 1e-6;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    DenseInput up = input, down = input;
    (up.*array)[i] += kStep;
    (down.*array)[i] -= kStep;
    EXPECT_NEAR(gradient[i], (loss_of(up) - loss_of(down)) / (2 * kStep), 1e-8) << "element " << i;
  }
}

TEST(DenseAttention, GradientsMatchFiniteDifferences) {
  DenseInput input{.rows_q = 3,
                   .rows_k = 4,
                   .heads_q = 2,
                   .heads_kv = 1,
                   .dim_qk = 2,
                   .dim_v = 1,
                   .num_sinks = 1,
                   .params = {.softcap = 1.5, .sink_layout = SinkLayout::SinkHead}};
  for (int i = 0; i < 12; ++i) input.q.push_back(std::sin(i + 1.0));
  for (int i = 0; i < 8; ++i) input.k.push_back(std::cos(2.0 * i));
  for (int i = 0; i < 4; ++i) input.v.push_back(0.5 * i - 0.7);
  input.sink = {0.3, -0.4};
  const Mask mask{3, 4, {{0, 2, 0, 4, -1, 1}, {1, 2, 1, 3}}};
  const std::vector<double> dout = {0.3, -1.0, 0.7, 0.2, 0.9, -0.6};
  const std::vector<double> dlse = {0.1, 0.4, -0.8, 0.5, 0.6, -0.2};
  const auto counts = counts_of(mask);
  const DenseGradients grads =
      dense_backward(input, counts, dense_forward(input, counts), dout, dlse);
  const auto loss_of = [&](const DenseInput& in) { return loss(in, mask, dout, dlse); };
  expect_slopes(input, &DenseInput::q, grads.dq, loss_of);
  expect_slopes(input, &DenseInput::k, grads.dk, loss_of);
  expect_slopes(input, &DenseInput::v, grads.dv, loss_of);
  expect_slopes(input, &DenseInput::sink, grads.dsink, loss_of);
}

TEST(DenseAttention, PlainSixteenBitRoundsInputsWeightsAndResults) {
  DenseInput input = tiny_input();
  input.q = {1.001, -2.001};
  input.rounding = Rounding::BFloat16;
  const Mask mask{2, 3, {{0, 2, 0, 3}}};
  const DenseOutput output = dense_forward(input, counts_of(mask));
  for (const double value : output.out) EXPECT_EQ(value, rounded(value, Rounding::BFloat16));
  EXPECT_EQ(output.max_logits[0], 2.0);
}

}  // namespace
}  // namespace magi::reference
