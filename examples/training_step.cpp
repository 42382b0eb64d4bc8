// SPDX-License-Identifier: Apache-2.0
// Attention of one training step, forward and backward, over the ranks that mpirun or torchrun
// started on this machine, or over eight threads without them; checked against one device.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <random>

#include "magi/attention.hpp"
#include "magi/mask_builders.hpp"
#include "magi/runtime.hpp"

namespace {

using Floats = magi::HostTensor<float>;
using SharedPlan = std::shared_ptr<const magi::Plan>;
constexpr std::int32_t kTokens = 1003, kHeads = 4, kHeadsKv = 2, kDim = 32;

struct Tensors {
  explicit Tensors(std::int64_t rows)
      : q({rows, kHeads, kDim}), k({rows, kHeadsKv, kDim}), v(k), out(q), lse({rows, kHeads}) {}
  Floats q, k, v, out, lse, dout = out, dq = q, dk = k, dv = v;
};
constexpr Floats Tensors::*kInputs[] = {&Tensors::q, &Tensors::k, &Tensors::v, &Tensors::dout};
constexpr Floats Tensors::*kResults[] = {&Tensors::out, &Tensors::dq, &Tensors::dk, &Tensors::dv};

float largest_difference(const Floats& a, const Floats& b) {
  float largest = 0.0f;
  for (std::size_t i = 0; i < a.elements().size(); ++i) {
    largest = std::max(largest, std::abs(a.elements()[i] - b.elements()[i]));
  }
  return largest;
}

void compute_on_one_device(const magi::Mask& mask, Tensors& t) {
  magi::attention_forward_cpu(
      {.q = t.q, .k = t.k, .v = t.v, .slices = mask.slices, .out = t.out, .lse = t.lse});
  magi::attention_backward_cpu({.q = t.q,
                                .k = t.k,
                                .v = t.v,
                                .slices = mask.slices,
                                .out = t.out,
                                .lse = t.lse,
                                .dout = t.dout,
                                .dq = t.dq,
                                .dk = t.dk,
                                .dv = t.dv});
}

void train(const SharedPlan& plan, magi::Communicator& ranks) {
  std::mt19937 random;  // the same numbers on every rank
  Tensors all(kTokens);
  for (const auto input : kInputs) {
    for (float& x : (all.*input).elements()) x = std::normal_distribution<float>()(random);
  }

  const magi::Placement& placement = plan->placement_q;
  Tensors own(placement.rows_of(ranks.rank()));
  for (const auto input : kInputs) {
    magi::dispatch(all.*input, placement, ranks.rank(), own.*input);
  }
  magi::DistributedAttention attention(plan, ranks);  // for all steps and layers of this plan
  const magi::AttentionInputs inputs{.q = own.q, .k = own.k, .v = own.v};
  const magi::AttentionResult result{.out = own.out, .lse = own.lse};
  attention.forward(inputs, result);
  attention.backward(inputs, result, {.dout = own.dout},
                     {.dq = own.dq, .dk = own.dk, .dv = own.dv});

  compute_on_one_device(plan->mask, all);
  float largest = 0.0f;
  for (const auto tensor : kResults) {
    Floats whole = all.*tensor;
    magi::undispatch(own.*tensor, placement, ranks, whole);
    largest = std::max(largest, largest_difference(whole, all.*tensor));
  }
  if (largest > 1e-4f) throw std::runtime_error("results differ from those of one device");
  if (ranks.rank() == 0) {
    std::cout << ranks.num_ranks() << " ranks, " << ranks.backend() << ": as on one device\n";
  }
  ranks.close_sync();
}

}  // namespace

int main() try {
  const std::vector<std::int32_t> documents{0, 100, 600, kTokens};
  const auto mask = magi::mask_from_cu_seqlens(documents, documents, {.is_causal = true});
  const auto launch = magi::join_launch(std::chrono::seconds(60));
  const std::int32_t num_ranks = launch ? launch->num_ranks : 8;
  const auto plan =
      std::make_shared<const magi::Plan>(magi::make_plan(mask, {.num_ranks = num_ranks,
                                                                .num_heads_q = kHeads,
                                                                .num_heads_kv = kHeadsKv,
                                                                .head_dim_qk = kDim,
                                                                .head_dim_v = kDim,
                                                                .element_bytes = sizeof(float)}));
  if (launch) {
    train(plan, *magi::make_shm_group(launch->rank, num_ranks, launch->bootstrap));
  } else {
    magi::run_ranks(num_ranks, [&](magi::Communicator& ranks) { train(plan, ranks); });
  }
} catch (const std::exception& error) {
  std::cerr << "training_step: " << error.what() << '\n';
  return 1;
}
