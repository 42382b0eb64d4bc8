// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/guarded_call.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "reference/error_rule.hpp"

namespace magi::test {
namespace {

constexpr double kLseTolerance = 2e-4;  ///< relative to max(1, |lse|)

/// The elements of heads [begin, begin + count) of sinks, whose heads are the last axis.
std::vector<double> sink_heads_of(const GuardedTensor& sink, std::int64_t begin,
                                  std::int64_t count) {
  std::vector<double> values;
  for (std::int64_t row = 0; row < sink.rows(); ++row) {
    for (std::int64_t i = 0; i < sink.heads(); ++i) {
      for (std::int64_t head = begin; head < begin + count; ++head) {
        values.push_back(sink.get(row, i, head));
      }
    }
  }
  return values;
}

/// Adds dv to the first columns of dk, which it then is part of.
void join_rows(const reference::DenseInput& in, reference::DenseGradients& gradients) {
  const auto dim_qk = static_cast<std::size_t>(in.dim_qk);
  const auto dim_v = static_cast<std::size_t>(in.dim_v);
  for (std::size_t i = 0; i < gradients.dv.size(); ++i) {
    gradients.dk[i / dim_v * dim_qk + i % dim_v] += gradients.dv[i];
  }
  gradients.dv.clear();
}

/// Poison was not added to.
void take_away(std::vector<double>& sums, const std::vector<double>& start) {
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] -= std::isnan(start[i]) ? 0.0 : start[i];
}

std::array<GuardedTensor*, 4> tensors_of(GuardedGradients& gradients) {
  return {&gradients.dq, &gradients.dk, &gradients.dv, gradients.dsink.get()};
}

}  // namespace

std::ostream& operator<<(std::ostream& stream, const CallShape& shape) {
  return stream << dtype_name(shape.type) << ", " << shape.rows_q << " x " << shape.rows_k
                << " rows, heads " << shape.heads_q << ":" << shape.heads_kv << ", dims "
                << shape.dim_qk << "/" << shape.dim_v << ", layout "
                << static_cast<int>(shape.layout) << ", sinks " << shape.num_sinks << ", softcap "
                << shape.params.softcap;
}

std::unique_ptr<GuardedTensor> sink_tensor(const CallShape& shape) {
  if (shape.num_sinks == 0) return nullptr;
  const bool is_shared = shape.params.sink_layout == SinkLayout::SinkHead;
  return std::make_unique<GuardedTensor>(DType::Float32, is_shared ? 1 : shape.rows_q,
                                         shape.num_sinks, shape.heads_q);
}

GuardedInputs::GuardedInputs(const CallShape& of, std::uint64_t seed, double magnitude)
    : shape(of),
      q(of.type, of.rows_q, of.heads_q, of.dim_qk, of.layout),
      k(of.type, of.rows_k, of.heads_kv, of.dim_qk, of.layout),
      v(of.type, of.rows_k, of.heads_kv, of.dim_v, of.layout),
      sink(sink_tensor(of)) {
  RandomStream random(seed);
  for (GuardedTensor* tensor : {&q, &k, &v}) fill_random(*tensor, random, magnitude);
  if (sink) fill_random(*sink, random, 2.0);
}

reference::DenseInput GuardedInputs::dense(std::int32_t kv_head) const {
  const std::int32_t first = kv_head * shape.group();
  return {.rows_q = shape.rows_q,
          .rows_k = shape.rows_k,
          .heads_q = shape.group(),
          .heads_kv = 1,
          .dim_qk = shape.dim_qk,
          .dim_v = shape.dim_v,
          .q = heads_of(q, first, shape.group()),
          .k = heads_of(k, kv_head, 1),
          .v = heads_of(v, kv_head, 1),
          .sink = sink ? sink_heads_of(*sink, first, shape.group()) : std::vector<double>{},
          .num_sinks = shape.num_sinks,
          .params = shape.params};
}

GuardedOutputs::GuardedOutputs(const CallShape& of, DType out_type)
    : shape(of),
      out(out_type, of.rows_q, of.heads_q, of.dim_v, of.layout),
      lse(DType::Float32, of.rows_q, of.heads_q, 1, of.layout),
      max_logits(DType::Float32, of.heads_q, 1, 1) {
  for (GuardedTensor* tensor : {&out, &lse, &max_logits}) tensor->upload_sync();
}

void GuardedOutputs::put_into(ForwardArgs& args, bool has_max_logits) const {
  args.out = out.view();
  args.lse = lse.view(2);
  if (has_max_logits) args.max_logits = max_logits.view(1);
}

void GuardedOutputs::download_sync() {
  for (GuardedTensor* tensor : {&out, &lse, &max_logits}) tensor->download_sync();
}

void GuardedOutputs::check_head(reference::DenseInput in, const reference::RowCounts& counts,
                                std::int32_t kv_head, bool has_max_logits) const {
  SCOPED_TRACE(::testing::Message() << "kv head " << kv_head);
  EXPECT_TRUE(out.has_whole_guards()) << "out was written outside its elements";
  EXPECT_TRUE(lse.has_whole_guards()) << "lse was written outside its elements";
  const std::int32_t first = kv_head * shape.group();
  const reference::DenseOutput truth = dense_forward(in, counts);
  in.rounding = reference::rounding_of(shape.type);
  in.is_rounding_scores = true;
  expect_out(heads_of(out, first, shape.group()), truth.out, dense_forward(in, counts).out,
             shape.type);
  const std::vector<double> lses = heads_of(lse, first, shape.group());
  for (std::size_t i = 0; i < lses.size(); ++i) {
    expect_lse(lses[i], truth.lse[i], "lse", static_cast<std::int64_t>(i));
  }
  for (std::int32_t i = 0; i < shape.group() && has_max_logits; ++i) {
    expect_lse(max_logits.get(first + i, 0, 0), truth.max_logits[static_cast<std::size_t>(i)],
               "max_logits", i);
  }
}

void expect_same_outputs(const GuardedOutputs& first, const GuardedOutputs& second) {
  expect_same_bits(first.out, second.out);
  expect_same_bits(first.lse, second.lse);
  expect_same_bits(first.max_logits, second.max_logits);
}

GuardedGradients::GuardedGradients(const CallShape& of, DType type)
    : shape(of),
      dq(type, of.rows_q, of.heads_q, of.dim_qk, of.layout),
      dk(type, of.rows_k, of.heads_kv, of.dim_qk, of.layout),
      dv(type, of.rows_k, of.heads_kv, of.dim_v, of.layout),
      dsink(sink_tensor(of)) {
  upload_sync();
}

void GuardedGradients::put_into(BackwardArgs& args) const {
  args.dq = dq.view();
  args.dk = dk.view();
  args.dv = dv.view();
  if (dsink) args.dsink = sink_view(*dsink, shape.params.sink_layout);
}

void GuardedGradients::upload_sync() {
  for (GuardedTensor* tensor : tensors_of(*this)) {
    if (tensor != nullptr) tensor->upload_sync();
  }
}

void GuardedGradients::download_sync() {
  for (GuardedTensor* tensor : tensors_of(*this)) {
    if (tensor != nullptr) tensor->download_sync();
  }
}

bool GuardedGradients::has_whole_guards() const {
  return dq.has_whole_guards() && dk.has_whole_guards() && dv.has_whole_guards() &&
         (!dsink || dsink->has_whole_guards());
}

void expect_same_but_dq(const GuardedGradients& first, const GuardedGradients& second) {
  expect_same_bits(first.dk, second.dk);
  expect_same_bits(first.dv, second.dv);
  if (first.dsink) expect_same_bits(*first.dsink, *second.dsink);
}

void expect_same_gradients(const GuardedGradients& first, const GuardedGradients& second) {
  expect_same_bits(first.dq, second.dq);
  expect_same_but_dq(first, second);
}

std::vector<double> heads_of(const GuardedTensor& tensor, std::int64_t begin, std::int64_t count) {
  std::vector<double> values;
  for (std::int64_t row = 0; row < tensor.rows(); ++row) {
    for (std::int64_t head = begin; head < begin + count; ++head) {
      for (std::int64_t d = 0; d < tensor.dim(); ++d) values.push_back(tensor.get(row, head, d));
    }
  }
  return values;
}

void set_heads(GuardedTensor& tensor, std::int64_t begin, std::int64_t count,
               const std::vector<double>& values) {
  auto value = values.begin();
  for (std::int64_t row = 0; row < tensor.rows(); ++row) {
    for (std::int64_t head = begin; head < begin + count; ++head) {
      for (std::int64_t d = 0; d < tensor.dim(); ++d) tensor.set(row, head, d, *value++);
    }
  }
}

void expect_out(const std::vector<double>& seen, const std::vector<double>& truth,
                const std::vector<double>& plain, DType type) {
  const reference::Decision decision = reference::judge_rounded(seen, truth, plain, type);
  EXPECT_TRUE(decision.holds()) << "out: " << decision.text();
}

void expect_lse(double seen, double expected, const char* name, std::int64_t place) {
  const double allowed = kLseTolerance * std::max(1.0, std::abs(expected));
  ASSERT_TRUE(std::isinf(expected) ? seen == expected : std::abs(seen - expected) <= allowed)
      << name << " " << place << " is " << seen << ", expected " << expected;
}

GradientRule::GradientRule(const reference::DenseInput& in, const reference::RowCounts& counts,
                           DType type, Given given)
    : type_(type) {
  const auto& [dout, dlse, stored, has_joined_rows] = given;
  reference::DenseOutput output = dense_forward(in, counts);
  reference::DenseInput rounding = in;
  rounding.rounding = reference::rounding_of(type);
  truth_ = dense_backward(in, counts, output, dout, dlse);
  plain_ = dense_backward(rounding, counts, dense_forward(rounding, counts), dout, dlse);
  const auto noise = [&](const std::vector<double>& factors) {
    return reference::cancelled_noise(in, dout, factors);
  };
  noise_q_ = noise(in.k);
  noise_k_ = noise(in.q);
  noise_sink_ = noise({1.0});
  if (has_joined_rows) join_rows(in, truth_);
  if (has_joined_rows) join_rows(in, plain_);
  // The rounding of a stored out and of a float dout is no error of the backward, and in the plain
  // computation it may happen to cancel others: exact gradients from what the backward sees are as
  // plain, the worse ones count.
  if (!stored.empty()) output.out = stored;
  std::vector<double> seen = dout;
  for (double& value : seen) value = reference::rounded(value, rounding.rounding);
  if (stored.empty() && seen == dout) return;
  auto exact = dense_backward(in, counts, output, seen, dlse);
  if (has_joined_rows) join_rows(in, exact);
  for (const Gradient gradient : {&reference::DenseGradients::dq, &reference::DenseGradients::dk,
                                  &reference::DenseGradients::dsink}) {
    if (reference::max_error(exact.*gradient, truth_.*gradient) >
        reference::max_error(plain_.*gradient, truth_.*gradient)) {
      plain_.*gradient = exact.*gradient;
    }
  }
}

void GradientRule::check(const std::vector<double>& seen, Gradient gradient, double noise,
                         const char* name) const {
  const std::vector<double>& truth = truth_.*gradient;
  reference::Decision decision = reference::judge_rounded(seen, truth, plain_.*gradient, type_);
  decision.allowed += noise;
  if (decision.holds()) return;
  std::size_t i = 0;
  while (i + 1 < seen.size() && std::abs(seen[i] - truth[i]) <= decision.allowed) ++i;
  ADD_FAILURE() << name << " " << i << " is " << seen[i] << ", expected " << truth[i] << " ("
                << decision.text() << ")";
}

void GradientRule::check_queries(const GuardedGradients& seen, std::int32_t kv_head,
                                 const GuardedGradients* start) const {
  const std::int32_t group = seen.shape.group(), first = kv_head * group;
  std::vector<double> dq = heads_of(seen.dq, first, group);
  if (start != nullptr) take_away(dq, heads_of(start->dq, first, group));
  check(dq, &reference::DenseGradients::dq, noise_q_, "dq");
}

void GradientRule::check_head(const GuardedGradients& seen, std::int32_t kv_head,
                              const GuardedGradients* start) const {
  SCOPED_TRACE(::testing::Message() << "kv head " << kv_head);
  const std::int32_t group = seen.shape.group(), first = kv_head * group;
  check_queries(seen, kv_head, start);
  std::vector<double> dk = heads_of(seen.dk, kv_head, 1), dv = heads_of(seen.dv, kv_head, 1);
  std::vector<double> dsink;
  if (seen.dsink) dsink = sink_heads_of(*seen.dsink, first, group);
  if (start != nullptr) {
    take_away(dk, heads_of(start->dk, kv_head, 1));
    take_away(dv, heads_of(start->dv, kv_head, 1));
    if (seen.dsink) take_away(dsink, sink_heads_of(*start->dsink, first, group));
  }
  check(dk, &reference::DenseGradients::dk, noise_k_, "dk");
  if (!truth_.dv.empty()) check(dv, &reference::DenseGradients::dv, 0.0, "dv");
  if (seen.dsink) check(dsink, &reference::DenseGradients::dsink, noise_sink_, "dsink");
}

}  // namespace magi::test
