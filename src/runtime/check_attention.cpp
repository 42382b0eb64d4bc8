// SPDX-License-Identifier: Apache-2.0
#include "runtime/check_attention.hpp"

#include <array>

#include "kernels/check/check_attention.hpp"
#include "kernels/check/check_tensor.hpp"

namespace magi {
namespace {

/// q, k and v have this rank's rows and the heads and dims of the plan.
void check_plan_shapes(const RankSteps& steps, const AttentionInputs& inputs) {
  const PlanConfig& config = steps.plan.config;
  const HeadShares& shares = steps.shares;
  const std::int64_t rows_q = shares.rows_q, rows_k = shares.rows_k;
  const std::int64_t heads_q = std::int64_t{config.num_heads_q} * shares.count;
  const std::int64_t heads_kv = std::int64_t{config.num_heads_kv} * shares.count;
  const std::int64_t dim_qk = config.head_dim_qk, dim_v = config.head_dim_v;
  const std::int32_t device = inputs.q.device;
  check_tensor_on(device, "q", inputs.q);
  check_shape("q", inputs.q, std::array{rows_q, heads_q, dim_qk});
  check_tensor_on(device, "k", inputs.k);
  check_shape("k", inputs.k, std::array{rows_k, heads_kv, dim_qk});
  check_tensor_on(device, "v", inputs.v);
  check_shape("v", inputs.v, std::array{rows_k, heads_kv, dim_v});
}

}  // namespace

void check_forward(const RankSteps& steps, const AttentionBackend& backend,
                   const AttentionInputs& inputs, const AttentionResult& result) {
  check_plan_shapes(steps, inputs);
  check_attention(backend.limits(),
                  ForwardArgs{.q = inputs.q,
                              .k = inputs.k,
                              .v = inputs.v,
                              .slices = {},
                              .sink = inputs.sink,
                              .out = result.out,
                              .lse = result.lse,
                              .max_logits = result.max_logits,
                              .params = inputs.params},
                  inputs.q.device);
}

void check_backward(const RankSteps& steps, const AttentionBackend& backend,
                    const AttentionInputs& inputs, const AttentionResult& result,
                    const OutputGradients& output_gradients,
                    const InputGradients& input_gradients) {
  check_plan_shapes(steps, inputs);
  const TensorView& dsink = input_gradients.dsink;
  check_attention(backend.limits(),
                  BackwardArgs{.q = inputs.q,
                               .k = inputs.k,
                               .v = inputs.v,
                               .slices = {},
                               .out = result.out,
                               .lse = result.lse,
                               .dout = output_gradients.dout,
                               .dlse = output_gradients.dlse,
                               .sink = inputs.sink,
                               .dq = input_gradients.dq,
                               .dk = input_gradients.dk,
                               .dv = input_gradients.dv,
                               // A sink may come without a place for its gradient.
                               .dsink = dsink.empty() ? inputs.sink : dsink,
                               .params = inputs.params},
                  inputs.q.device);
}

}  // namespace magi
