// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/backward/case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "reference/error_rule.hpp"

namespace magi::test {
namespace {

constexpr std::size_t kGuardBytes = 4096;

void assign(GuardedTensor& tensor, const std::vector<double>& values) {
  std::size_t i = 0;
  for (std::int64_t row = 0; row < tensor.rows(); ++row) {
    for (std::int64_t head = 0; head < tensor.heads(); ++head) {
      for (std::int64_t d = 0; d < tensor.dim(); ++d, ++i) tensor.set(row, head, d, values[i]);
    }
  }
  tensor.upload_sync();
}

std::unique_ptr<GuardedTensor> sink_tensor(const BackwardCase& test) {
  if (test.num_sinks == 0) return nullptr;
  const bool is_shared = test.params.sink_layout == SinkLayout::SinkHead;
  return std::make_unique<GuardedTensor>(DType::Float32, is_shared ? 1 : test.mask.rows_q,
                                         test.num_sinks, test.heads_q);
}

void run(const BackwardCase& test, const BackwardInputs& inputs, const BackwardWork& work,
         const GuardedWorkspace& workspace, BackwardOutputs& outputs) {
  BackwardArgs args = inputs.args(test);
  outputs.put_into(test, args);
  attention_backward_cuda(args, work, workspace.view(), nullptr);
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  outputs.download_sync();
}

struct Expected {
  std::vector<double> truth;
  std::vector<double> plain;
  bool is_added = false;
  double noise = 0.0;
};

void expect_close(const BackwardCase& test, const GuardedTensor& seen, const GuardedTensor& start,
                  const Expected& expected, const char* name) {
  std::vector<double> values = values_of(seen);
  if (expected.is_added) {
    const std::vector<double> before = values_of(start);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] -= before[i];
  }
  reference::Decision decision =
      reference::judge_rounded(values, expected.truth, expected.plain, test.type);
  decision.allowed += expected.noise;
  EXPECT_TRUE(seen.has_whole_guards()) << name << " was written outside its elements";
  if (decision.holds()) return;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::abs(values[i] - expected.truth[i]) <= decision.allowed) continue;
    const auto at = static_cast<std::int64_t>(i);
    ADD_FAILURE() << name << " row " << at / seen.dim() / seen.heads() << " head "
                  << at / seen.dim() % seen.heads() << " dim " << at % seen.dim() << " is "
                  << values[i] << ", expected " << expected.truth[i] << " (" << decision.text()
                  << ")";
    return;
  }
}

/// What the gradients of a case are held against.
class Judge {
 public:
  Judge(const BackwardCase& test, const BackwardInputs& inputs)
      : test_(test), inputs_(inputs), dout_(values_of(inputs.dout)), start_(test) {
    const auto counts = reference::counts_of(test.mask);
    const std::vector<double> dlse = test.has_dlse ? values_of(inputs.dlse) : std::vector<double>{};
    reference::DenseInput plain_in = inputs.dense;
    plain_in.rounding = reference::rounding_of(test.type);
    truth_ = dense_backward(inputs.dense, counts, inputs.dense_out, dout_, dlse);
    plain_ = dense_backward(plain_in, counts, dense_forward(plain_in, counts), dout_, dlse);
    if (test.out_type() != test.type) return;
    // The rounding of a stored out is no error of the backward, and in the plain computation it may
    // happen to cancel that of its weights: exact gradients from the stored out are as plain, the
    // worse ones count.
    reference::DenseOutput stored = inputs.dense_out;
    for (double& value : stored.out) value = reference::rounded(value, plain_in.rounding);
    const auto exact = dense_backward(inputs.dense, counts, stored, dout_, dlse);
    for (const auto gradient : {&reference::DenseGradients::dq, &reference::DenseGradients::dk,
                                &reference::DenseGradients::dsink}) {
      if (reference::max_error(exact.*gradient, truth_.*gradient) >
          reference::max_error(plain_.*gradient, truth_.*gradient)) {
        plain_.*gradient = exact.*gradient;
      }
    }
  }

  void check(const BackwardOutputs& seen) const {
    const bool adds_keys = test_.adds_keys();
    check_queries(seen);
    expect_close(test_, seen.dk, start_.dk,
                 {truth_.dk, plain_.dk, adds_keys, noise(inputs_.dense.q)}, "dk");
    expect_close(test_, seen.dv, start_.dv, {truth_.dv, plain_.dv, adds_keys}, "dv");
    if (!seen.dsink) return;
    expect_close(test_, *seen.dsink, *start_.dsink,
                 {truth_.dsink, plain_.dsink, test_.is_accumulating, noise({1.0})}, "dsink");
  }

  void check_queries(const BackwardOutputs& seen) const {
    expect_close(test_, seen.dq, start_.dq,
                 {truth_.dq, plain_.dq, test_.is_accumulating, noise(inputs_.dense.k)}, "dq");
  }

 private:
  double noise(const std::vector<double>& factors) const {
    return reference::cancelled_noise(inputs_.dense, dout_, factors);
  }

  const BackwardCase& test_;
  const BackwardInputs& inputs_;
  const std::vector<double> dout_;
  const BackwardOutputs start_;
  reference::DenseGradients truth_;
  reference::DenseGradients plain_;
};

}  // namespace

std::ostream& operator<<(std::ostream& stream, const BackwardCase& test) {
  stream << "seed " << test.seed << ' ' << dtype_name(test.type) << " rows " << test.mask.rows_q
         << " x " << test.mask.rows_k << " heads " << test.heads_q << ":" << test.heads_kv
         << " dims " << test.dim_qk << ", " << test.dim_v << " packed " << test.tuning.packed_heads
         << " per item " << test.tuning.heads_per_item << " margin " << test.tuning.sm_margin
         << (test.tuning.is_deterministic ? "" : " fast") << " walk "
         << static_cast<int>(test.tuning.head_walk) << " section " << test.tuning.section_heads
         << " layout " << static_cast<int>(test.layout) << " sinks " << test.num_sinks
         << " softcap " << test.params.softcap << (test.has_float_out ? " float out" : "")
         << (test.has_float_gradients ? " float gradients" : "")
         << (test.is_accumulating ? " accumulating" : "")
         << (test.is_writing_keys ? " writing keys" : "") << (test.has_dlse ? " dlse" : "")
         << " slices";
  for (const BandSlice& s : test.mask.slices) {
    stream << " {" << s.q0 << ", " << s.q1 << ", " << s.k0 << ", " << s.k1 << ", " << s.d_min
           << ", " << s.d_max << "}";
  }
  return stream;
}

BackwardInputs::BackwardInputs(const BackwardCase& test)
    : q(test.type, test.mask.rows_q, test.heads_q, test.dim_qk, test.layout),
      k(test.type, test.mask.rows_k, test.heads_kv, test.dim_qk, test.layout),
      v(test.type, test.mask.rows_k, test.heads_kv, test.dim_v, test.layout),
      out(test.out_type(), test.mask.rows_q, test.heads_q, test.dim_v, test.layout),
      lse(DType::Float32, test.mask.rows_q, test.heads_q, 1, test.layout),
      dout(test.out_type(), test.mask.rows_q, test.heads_q, test.dim_v, test.layout),
      dlse(DType::Float32, test.mask.rows_q, test.heads_q, 1, test.layout),
      sink(sink_tensor(test)) {
  RandomStream random(test.seed);
  for (GuardedTensor* tensor : {&q, &k, &v, &dout}) fill_random(*tensor, random, test.magnitude);
  fill_random(dlse, random, 1.0);
  if (sink) fill_random(*sink, random, 2.0);
  dense = {.rows_q = test.mask.rows_q,
           .rows_k = test.mask.rows_k,
           .heads_q = test.heads_q,
           .heads_kv = test.heads_kv,
           .dim_qk = test.dim_qk,
           .dim_v = test.dim_v,
           .q = values_of(q),
           .k = values_of(k),
           .v = values_of(v),
           .sink = sink ? values_of(*sink) : std::vector<double>{},
           .num_sinks = test.num_sinks,
           .params = test.params};
  dense_out = dense_forward(dense, reference::counts_of(test.mask));
  assign(out, dense_out.out);
  assign(lse, dense_out.lse);
}

BackwardArgs BackwardInputs::args(const BackwardCase& test) const {
  BackwardArgs args;
  args.q = q.view();
  args.k = k.view();
  args.v = v.view();
  args.slices = test.mask.slices;
  args.out = out.view();
  args.lse = lse.view(2);
  args.dout = dout.view();
  if (test.has_dlse) args.dlse = dlse.view(2);
  if (sink) args.sink = sink_view(*sink, test.params.sink_layout);
  args.is_accumulating = test.is_accumulating;
  args.is_writing_keys = test.is_writing_keys;
  args.params = test.params;
  return args;
}

BackwardOutputs::BackwardOutputs(const BackwardCase& test)
    : dq(test.gradient_type(), test.mask.rows_q, test.heads_q, test.dim_qk, test.layout),
      dk(test.gradient_type(), test.mask.rows_k, test.heads_kv, test.dim_qk, test.layout),
      dv(test.gradient_type(), test.mask.rows_k, test.heads_kv, test.dim_v, test.layout),
      dsink(sink_tensor(test)) {
  RandomStream random(test.seed + 1);
  for (GuardedTensor* tensor : {&dq, &dk, &dv, dsink.get()}) {
    if (tensor == nullptr) continue;
    const bool is_key = tensor == &dk || tensor == &dv;
    if (is_key ? test.adds_keys() : test.is_accumulating) {
      fill_random(*tensor, random, 1.0);
    } else {
      tensor->upload_sync();
    }
  }
}

void BackwardOutputs::put_into(const BackwardCase& test, BackwardArgs& args) const {
  args.dq = dq.view();
  args.dk = dk.view();
  args.dv = dv.view();
  if (dsink) args.dsink = sink_view(*dsink, test.params.sink_layout);
}

void BackwardOutputs::download_sync() {
  for (GuardedTensor* tensor : {&dq, &dk, &dv, dsink.get()}) {
    if (tensor != nullptr) tensor->download_sync();
  }
}

GuardedWorkspace::GuardedWorkspace(std::int64_t size_bytes)
    : size_bytes_(size_bytes), buffer_(static_cast<std::size_t>(size_bytes) + 2 * kGuardBytes) {
  buffer_.fill(0xff, nullptr);
}

DeviceWorkspace GuardedWorkspace::view() const {
  return {static_cast<std::uint8_t*>(buffer_.data()) + kGuardBytes, size_bytes_};
}

bool GuardedWorkspace::has_whole_guards() const {
  const auto* begin = static_cast<const std::uint8_t*>(buffer_.data());
  for (const std::size_t offset : {std::size_t{0}, buffer_.size_bytes() - kGuardBytes}) {
    for (const auto byte : to_host_sync<std::uint8_t>(begin + offset, kGuardBytes)) {
      if (byte != 0xff) return false;
    }
  }
  return true;
}

void expect_same_gradients(const BackwardOutputs& first, const BackwardOutputs& second) {
  expect_same_bits(first.dq, second.dq);
  expect_same_but_dq(first, second);
}

void expect_same_but_dq(const BackwardOutputs& first, const BackwardOutputs& second) {
  expect_same_bits(first.dk, second.dk);
  expect_same_bits(first.dv, second.dv);
  if (first.dsink) expect_same_bits(*first.dsink, *second.dsink);
}

void run_backward_sync(const BackwardCase& test, const BackwardInputs& inputs,
                       BackwardOutputs& outputs) {
  BackwardArgs args = inputs.args(test);
  outputs.put_into(test, args);
  const BackwardWork work(args, test.tuning);
  run(test, inputs, work, GuardedWorkspace(work.workspace_bytes()), outputs);
}

std::function<void(const BackwardOutputs& seen, Gradients which)> make_judge(
    const BackwardCase& test, const BackwardInputs& inputs) {
  return [judge = std::make_shared<const Judge>(test, inputs)](const BackwardOutputs& seen,
                                                               Gradients which) {
    if (which == Gradients::All) return judge->check(seen);
    judge->check_queries(seen);
  };
}

void check_backward(const BackwardCase& test) {
  SCOPED_TRACE(::testing::Message() << test);
  const BackwardInputs inputs(test);
  BackwardOutputs outputs(test);
  BackwardArgs args = inputs.args(test);
  outputs.put_into(test, args);
  const BackwardWork work(args, test.tuning);
  const GuardedWorkspace workspace(work.workspace_bytes());
  ASSERT_NO_THROW(run(test, inputs, work, workspace, outputs));
  const Judge judge(test, inputs);
  judge.check(outputs);
  EXPECT_TRUE(workspace.has_whole_guards()) << "memory beside the workspace was written";
  BackwardOutputs again(test);
  ASSERT_NO_THROW(run(test, inputs, work, workspace, again));
  if (test.tuning.is_deterministic) {
    expect_same_gradients(outputs, again);
  } else {
    expect_same_but_dq(outputs, again);
    judge.check_queries(again);
  }
}

}  // namespace magi::test
