// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/attention_case.hpp"

#include <gtest/gtest.h>

#include <sstream>

#include "support/random_mask.hpp"

namespace magi::testing {
namespace {

using reference::Decision;
using reference::DenseGradients;
using reference::DenseInput;
using reference::DenseOutput;
using reference::judge_exact;
using reference::judge_rounded;
using reference::Rounding;
using Shape = std::vector<std::int64_t>;

/// Close to normal, from one stream on every machine.
double draw_value(RandomStream& random) {
  double sum = 0;
  for (int i = 0; i < 4; ++i) sum += random.between(-1000000, 1000000) * 1e-6;
  return sum * 0.866;
}

/// `count` values that `dtype` represents.
std::vector<double> draw(RandomStream& random, std::int64_t count, DType dtype) {
  HostArray array(dtype, {count}, Layout::Packed);
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) value = draw_value(random);
  array.assign(values);
  return array.values();
}

Shape shape_q(const DenseInput& in) { return {in.rows_q, in.heads_q, in.dim_qk}; }
Shape shape_k(const DenseInput& in) { return {in.rows_k, in.heads_kv, in.dim_qk}; }
Shape shape_v(const DenseInput& in) { return {in.rows_k, in.heads_kv, in.dim_v}; }
Shape shape_out(const DenseInput& in) { return {in.rows_q, in.heads_q, in.dim_v}; }
Shape shape_sink(const DenseInput& in) {
  if (in.params.sink_layout == SinkLayout::SinkHead) return {in.num_sinks, in.heads_q};
  return {in.rows_q, in.num_sinks, in.heads_q};
}

std::int64_t count_of(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

/// What `run`, which is given the arguments of one call of the whole mask, leaves in arrays of the
/// case and in an `out` of this type.
template <typename Run>
ForwardResult forward_by(const AttentionCase& test, DType out_type, const Run& run) {
  const DenseInput& in = test.dense;
  HostArray q(test.dtype, shape_q(in), test.layout, in.q);
  HostArray k(test.dtype, shape_k(in), test.layout, in.k);
  HostArray v(test.dtype, shape_v(in), test.layout, in.v);
  HostArray sink;
  if (in.num_sinks > 0) sink = HostArray(test.real(), shape_sink(in), test.layout, in.sink);
  HostArray out(out_type, shape_out(in), test.layout);
  HostArray lse(test.real(), {in.rows_q, in.heads_q}, test.layout);
  HostArray max_logits(test.real(), {in.heads_q}, test.layout);
  run(ForwardArgs{.q = q.view(),
                  .k = k.view(),
                  .v = v.view(),
                  .slices = test.mask.slices,
                  .sink = in.num_sinks > 0 ? sink.view() : TensorView{},
                  .out = out.view(),
                  .lse = lse.view(),
                  .max_logits = max_logits.view(),
                  .params = in.params});
  EXPECT_EQ(out.num_spoiled_gaps() + lse.num_spoiled_gaps() + max_logits.num_spoiled_gaps(), 0);
  return {out.values(), lse.values(), max_logits.values()};
}

}  // namespace

std::string AttentionCase::describe() const {
  std::ostringstream text;
  text << dtype_name(dtype) << " -> " << dtype_name(result_dtype) << ", heads " << dense.heads_q
       << "/" << dense.heads_kv << ", dims " << dense.dim_qk << "/" << dense.dim_v << ", scale "
       << dense.params.softmax_scale << ", softcap " << dense.params.softcap << ", sinks "
       << dense.num_sinks << " layout " << static_cast<int>(dense.params.sink_layout)
       << (dlse.empty() ? "" : ", dlse") << (layout == Layout::Padded ? ", padded " : " ");
  if (mask.slices.size() < 50) text << testing::describe(mask);
  return text.str();
}

DType any_float_type(RandomStream& random) {
  constexpr DType kTypes[] = {DType::Float64, DType::Float32, DType::BFloat16, DType::Float16};
  return kTypes[random.between(0, 3)];
}

AttentionCase random_case(RandomStream& random, DType dtype, const RandomMaskOptions& options) {
  AttentionCase test;
  test.mask = random_mask(random, options);
  test.dtype = dtype;
  test.result_dtype = random.chance(50) ? dtype : test.real();
  test.layout = random.chance(50) ? Layout::Packed : Layout::Padded;
  DenseInput& in = test.dense;
  in.rows_q = test.mask.rows_q;
  in.rows_k = test.mask.rows_k;
  in.heads_kv = random.between(1, 3);
  in.heads_q = in.heads_kv * (random.chance(10) ? 13 : random.between(1, 4));
  in.dim_qk = random.chance(50) ? 8 * random.between(1, 10) : random.between(1, 70);
  in.dim_v = random.chance(50) ? in.dim_qk : random.between(1, 70);
  if (random.chance(30)) in.params.softmax_scale = random.between(-40, 40) * 0.01;
  if (random.chance(30)) in.params.softcap = random.between(1, 40) * 0.25;
  if (random.chance(40)) in.num_sinks = random.between(1, 8);
  if (random.chance(50)) in.params.sink_layout = SinkLayout::RowSinkHead;
  if (random.chance(50)) test.dlse.resize(1);
  draw_values(random, test);
  return test;
}

void draw_values(RandomStream& random, AttentionCase& test) {
  DenseInput& in = test.dense;
  in.q = draw(random, count_of(shape_q(in)), test.dtype);
  in.k = draw(random, count_of(shape_k(in)), test.dtype);
  in.v = draw(random, count_of(shape_v(in)), test.dtype);
  test.dout = draw(random, count_of(shape_out(in)), test.dtype);
  if (in.num_sinks > 0) in.sink = draw(random, count_of(shape_sink(in)), test.real());
  if (!test.dlse.empty()) test.dlse = draw(random, in.rows_q * in.heads_q, test.real());
}

ForwardResult run_merged(const AttentionCase& test,
                         const std::vector<std::vector<BandSlice>>& parts, std::size_t sink_part) {
  const DType out_type = parts.size() > 1 ? test.real() : test.result_dtype;
  return forward_by(test, out_type, [&](const ForwardArgs& whole) {
    for (std::size_t part = 0; part < parts.size(); ++part) {
      ForwardArgs args = whole;
      args.slices = parts[part];
      if (part != sink_part) args.sink = {};
      args.is_merging = part > 0;
      attention_forward_cpu(args);
    }
  });
}

ForwardResult run_forward(const AttentionCase& test, cpu::Isa isa) {
  return forward_by(test, test.result_dtype,
                    [&](const ForwardArgs& args) { cpu::attention_forward(args, isa); });
}

DenseGradients run_backward(const AttentionCase& test, const DenseOutput& output, cpu::Isa isa,
                            const double* start) {
  const DenseInput& in = test.dense;
  HostArray q(test.dtype, shape_q(in), test.layout, in.q);
  HostArray k(test.dtype, shape_k(in), test.layout, in.k);
  HostArray v(test.dtype, shape_v(in), test.layout, in.v);
  HostArray out(test.result_dtype, shape_out(in), test.layout, output.out);
  HostArray dout(test.dtype, shape_out(in), test.layout, test.dout);
  HostArray lse(test.real(), {in.rows_q, in.heads_q}, test.layout, output.lse);
  HostArray dlse, sink, dsink;
  if (!test.dlse.empty()) {
    dlse = HostArray(test.real(), {in.rows_q, in.heads_q}, test.layout, test.dlse);
  }
  const DType written = start != nullptr ? test.real() : test.result_dtype;
  HostArray dq(written, shape_q(in), test.layout), dk(written, shape_k(in), test.layout);
  HostArray dv(written, shape_v(in), test.layout);
  if (in.num_sinks > 0) {
    sink = HostArray(test.real(), shape_sink(in), test.layout, in.sink);
    dsink = HostArray(test.real(), shape_sink(in), test.layout);
  }
  if (start != nullptr) {
    const std::vector<double> values(
        std::max({in.q.size(), in.k.size(), in.v.size(), in.sink.size()}), *start);
    for (HostArray* array : {&dq, &dk, &dv}) array->assign(values);
    if (in.num_sinks > 0) dsink.assign(values);
  }
  cpu::attention_backward({.q = q.view(),
                           .k = k.view(),
                           .v = v.view(),
                           .slices = test.mask.slices,
                           .out = out.view(),
                           .lse = lse.view(),
                           .dout = dout.view(),
                           .dlse = test.dlse.empty() ? TensorView{} : dlse.view(),
                           .sink = in.num_sinks > 0 ? sink.view() : TensorView{},
                           .dq = dq.view(),
                           .dk = dk.view(),
                           .dv = dv.view(),
                           .dsink = in.num_sinks > 0 ? dsink.view() : TensorView{},
                           .is_accumulating = start != nullptr,
                           .is_writing_keys = test.is_writing_keys,
                           .params = in.params},
                          isa);
  EXPECT_EQ(dq.num_spoiled_gaps() + dk.num_spoiled_gaps() + dv.num_spoiled_gaps(), 0);
  return {dq.values(), dk.values(), dv.values(),
          in.num_sinks > 0 ? dsink.values() : std::vector<double>{}};
}

namespace {

/// Judges an array whose elements have the case's result type. A GPU's products take 16-bit
/// operands whatever that is.
Decision judge(const AttentionCase& test, const std::vector<double>& got,
               const std::vector<double>& truth, const std::vector<double>& plain) {
  if (test.is_on_gpu) return judge_rounded(got, truth, plain, test.dtype);
  if (test.result_dtype == test.real()) return judge_exact(got, truth, test.real());
  return judge_rounded(got, truth, plain, test.result_dtype);
}

/// lse or max_logits.
Decision judge_lse(const AttentionCase& test, const std::vector<double>& got,
                   const std::vector<double>& truth) {
  return test.is_on_gpu ? reference::judge_approximate(got, truth)
                        : judge_exact(got, truth, test.real());
}

void expect_holds(Decision decision, const char* name, double noise = 0.0) {
  decision.allowed += noise;
  EXPECT_TRUE(decision.holds()) << name << ": " << decision.text();
}

/// What a gradient may be off beyond its rule, as its terms may cancel.
double noise(const AttentionCase& test, const std::vector<double>& factors) {
  return test.is_on_gpu || test.has_huge_logits
             ? reference::cancelled_noise(test.dense, test.dout, factors)
             : 0.0;
}

DenseInput plain_input(const AttentionCase& test) {
  DenseInput plain = test.dense;
  plain.rounding = reference::rounding_of(test.dtype);
  return plain;
}

}  // namespace

void expect_forward_close(const AttentionCase& test, const ForwardResult& got) {
  const auto counts = test.counts();
  const DenseOutput truth = dense_forward(test.dense, counts);
  const DenseOutput plain = dense_forward(plain_input(test), counts);
  expect_holds(judge(test, got.out, truth.out, plain.out), "out");
  expect_holds(judge_lse(test, got.lse, truth.lse), "lse");
  expect_holds(judge_lse(test, got.max_logits, truth.max_logits), "max_logits");
}

void expect_backward_close(const AttentionCase& test, const DenseOutput& output,
                           const DenseGradients& got) {
  const auto counts = test.counts();
  const DenseGradients truth = dense_backward(test.dense, counts, output, test.dout, test.dlse);
  const DenseInput plain_in = plain_input(test);
  const DenseGradients plain =
      dense_backward(plain_in, counts, dense_forward(plain_in, counts), test.dout, test.dlse);
  expect_holds(judge(test, got.dq, truth.dq, plain.dq), "dq", noise(test, test.dense.k));
  expect_holds(judge(test, got.dk, truth.dk, plain.dk), "dk", noise(test, test.dense.q));
  expect_holds(judge(test, got.dv, truth.dv, plain.dv), "dv");
  if (test.dense.num_sinks > 0) {
    expect_holds(judge(test, got.dsink, truth.dsink, plain.dsink), "dsink", noise(test, {1.0}));
  }
}

}  // namespace magi::testing
