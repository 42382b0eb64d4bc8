// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "cuda/check.hpp"
#include "kernels/sm90/listed/tensors.hpp"
#include "reference/error_rule.hpp"

namespace magi::test {
namespace {

/// What a backward reads besides the inputs, and what it writes, poisoned with NaN.
struct Gradients {
  explicit Gradients(const ListedCase& test)
      : out(test.type, test.rows_q, test.heads_q, test.dim_v, test.layout),
        lse(DType::Float32, test.rows_q, test.heads_q, 1, test.layout),
        dout(test.type, test.rows_q, test.heads_q, test.dim_v, test.layout),
        dlse(DType::Float32, test.rows_q, test.heads_q, 1, test.layout),
        dq(written(test), test.rows_q, test.heads_q, test.dim_qk, test.layout),
        dk(written(test), test.rows_k, test.heads_kv, test.dim_qk, test.layout),
        dv(written(test), test.rows_k, test.heads_kv, test.dim_v, test.layout),
        dsink(listed_sink(test)) {
    RandomStream random(test.seed + 2000);
    fill_random(dout, random, 1.0);
    fill_random(dlse, random, 1.0);
    for (auto* tensor : {&out, &lse, &dq, &dk, &dv, dsink.get()}) {
      if (tensor != nullptr) tensor->upload_sync();
    }
  }
  static DType written(const ListedCase& test) {
    return test.has_float_out ? DType::Float32 : test.type;
  }

  GuardedTensor out, lse, dout, dlse, dq, dk, dv;
  std::unique_ptr<GuardedTensor> dsink;
};

void run_sync(const ListedCase& test, const ListedTensors& tensors, const ListedIndices& lists,
              Gradients& gradients) {
  const TensorView none;
  const SinkLayout layout = test.params.sink_layout;
  TensorView sink = tensors.sink ? sink_view(*tensors.sink, layout) : none;
  if (test.repeats_sinks) sink.stride[0] = 0;
  attention_forward_cuda({.q = tensors.q.view(),
                          .k = tensors.k.view(),
                          .v = tensors.v.view(),
                          .slices = {},
                          .sink = sink,
                          .out = gradients.out.view(),
                          .lse = gradients.lse.view(2),
                          .max_logits = {},
                          .params = test.params},
                         lists.view(), test.sm_margin, nullptr);
  attention_backward_cuda({.q = tensors.q.view(),
                           .k = tensors.k.view(),
                           .v = tensors.v.view(),
                           .slices = {},
                           .out = gradients.out.view(),
                           .lse = gradients.lse.view(2),
                           .dout = gradients.dout.view(),
                           .dlse = test.has_dlse ? gradients.dlse.view(2) : none,
                           .sink = sink,
                           .dq = gradients.dq.view(),
                           .dk = gradients.dk.view(),
                           .dv = gradients.dv.view(),
                           .dsink = tensors.sink ? sink_view(*gradients.dsink, layout) : none,
                           .params = test.params},
                          lists.view(), {.sm_margin = test.sm_margin, .is_fast = test.is_fast},
                          nullptr);
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  for (auto* tensor :
       {&gradients.out, &gradients.dq, &gradients.dk, &gradients.dv, gradients.dsink.get()}) {
    if (tensor != nullptr) tensor->download_sync();
  }
}

struct Expected {
  std::vector<double> truth, plain;
  double noise = 0.0;
};

void check_close(const ListedCase& test, const std::vector<double>& seen, const Expected& expected,
                 const char* name) {
  reference::Decision decision =
      reference::judge_rounded(seen, expected.truth, expected.plain, test.type);
  decision.allowed += expected.noise;
  EXPECT_TRUE(decision.holds()) << name << ": " << decision.text();
}

/// Exact gradients from the out that was stored are as plain as those of a plain computation, whose
/// errors may happen to cancel: the worse ones count.
void take_worse(const std::vector<double>& exact, const std::vector<double>& truth,
                std::vector<double>& plain) {
  if (reference::max_error(exact, truth) > reference::max_error(plain, truth)) plain = exact;
}

void check_head(const ListedCase& test, const ListedTensors& tensors, const ListedIndices& lists,
                const Gradients& seen, std::int32_t kv_head) {
  SCOPED_TRACE("kv head " + std::to_string(kv_head));
  const std::int32_t group = test.heads_q / test.heads_kv;
  const auto of_q = [&](const GuardedTensor& tensor) {
    return heads_of(tensor, kv_head * group, group);
  };
  const reference::DenseInput in = input_of(test, tensors, kv_head);
  const reference::RowCounts counts = lists.counts_of(kv_head);
  const std::vector<double> dout = of_q(seen.dout);
  const std::vector<double> dlse = test.has_dlse ? of_q(seen.dlse) : std::vector<double>{};
  const reference::DenseOutput output = dense_forward(in, counts);
  const auto truth = dense_backward(in, counts, output, dout, dlse);
  reference::DenseInput rounding = in;
  rounding.rounding = reference::rounding_of(test.type);
  auto plain = dense_backward(rounding, counts, dense_forward(rounding, counts), dout, dlse);
  reference::DenseOutput stored = output;
  stored.out = of_q(seen.out);
  const auto exact = dense_backward(in, counts, stored, dout, dlse);
  take_worse(exact.dq, truth.dq, plain.dq);
  take_worse(exact.dk, truth.dk, plain.dk);
  take_worse(exact.dsink, truth.dsink, plain.dsink);
  const auto noise = [&](const std::vector<double>& factors) {
    return reference::cancelled_noise(in, dout, factors);
  };
  check_close(test, of_q(seen.dq), {truth.dq, plain.dq, noise(in.k)}, "dq");
  check_close(test, heads_of(seen.dk, kv_head, 1), {truth.dk, plain.dk, noise(in.q)}, "dk");
  check_close(test, heads_of(seen.dv, kv_head, 1), {truth.dv, plain.dv}, "dv");
  if (!seen.dsink) return;
  check_close(test, sink_heads_of(*seen.dsink, kv_head * group, group),
              {truth.dsink, plain.dsink, noise({1.0})}, "dsink");
}

}  // namespace

void check_listed_backward(const ListedCase& test) {
  SCOPED_TRACE(::testing::Message() << test);
  ListedTensors tensors(test);
  const ListedIndices lists(test);
  Gradients gradients(test);
  ASSERT_NO_THROW(run_sync(test, tensors, lists, gradients));
  for (std::int32_t head = 0; head < test.heads_kv; ++head) {
    check_head(test, tensors, lists, gradients, head);
  }
  for (auto* tensor : {&gradients.dq, &gradients.dk, &gradients.dv, gradients.dsink.get()}) {
    if (tensor == nullptr) continue;
    EXPECT_TRUE(tensor->has_whole_guards()) << "a gradient was written outside its elements";
  }
  tensors.poison_unseen_keys(lists);
  Gradients again(test);
  ASSERT_NO_THROW(run_sync(test, tensors, lists, again));
  expect_same_bits(gradients.dq, again.dq);
  if (gradients.dsink) expect_same_bits(*gradients.dsink, *again.dsink);
  if (test.is_fast) return;
  expect_same_bits(gradients.dk, again.dk);
  expect_same_bits(gradients.dv, again.dv);
}

}  // namespace magi::test
