// SPDX-License-Identifier: Apache-2.0
#include "runtime/check_attention.hpp"

#include <array>
#include <string>

#include "base/check.hpp"
#include "kernels/check/check_attention.hpp"
#include "kernels/check/check_tensor.hpp"
#include "runtime/tensors/check_device.hpp"

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

/// Refuses what no device allows. StepMemory checks the rest, when a call tells the device.
void check_choices(const AttentionOptions& options) {
  if ((options.allocator.allocate == nullptr) != (options.allocator.release == nullptr)) {
    throw invalid("options.allocator", "one function", "allocate and release, or neither");
  }
  constexpr std::int32_t kMostSms = 1 << 20;
  if (options.exchange_sms < 0 || options.exchange_sms > kMostSms) {
    throw invalid("options.exchange_sms", options.exchange_sms,
                  "0 to " + std::to_string(kMostSms) + ", and less than a GPU has");
  }
  if (options.backend.empty()) return;
  std::string allowed;
  for (const std::string& name : backend_names()) {
    if (name == options.backend) return;
    allowed += (allowed.empty() ? "" : ", ") + name;
  }
  throw invalid("options.backend", options.backend, allowed);
}

}  // namespace

ForwardArgs forward_args(const AttentionInputs& inputs, const AttentionResult& result) {
  return {.q = inputs.q,
          .k = inputs.k,
          .v = inputs.v,
          .sink = inputs.sink,
          .out = result.out,
          .lse = result.lse,
          .max_logits = result.max_logits,
          .params = inputs.params};
}

BackwardArgs backward_args(const AttentionInputs& inputs, const AttentionResult& result,
                           const OutputGradients& output, const InputGradients& input) {
  return {.q = inputs.q,
          .k = inputs.k,
          .v = inputs.v,
          .out = result.out,
          .lse = result.lse,
          .dout = output.dout,
          .dlse = output.dlse,
          .sink = inputs.sink,
          .dq = input.dq,
          .dk = input.dk,
          .dv = input.dv,
          .dsink = input.dsink,
          .params = inputs.params};
}

void check_setup(const Plan* plan, const Communicator& communicator,
                 const AttentionOptions& options) {
  if (plan == nullptr) throw invalid("plan", "null", "a plan");
  if (plan->ranks.empty()) throw invalid("plan.ranks", "empty", "those of a plan that was made");
  for (std::size_t e = 0; e < plan->exchanges.size(); ++e) {
    const std::int32_t hop = plan->exchanges[e].hop;
    if (hop == 0 || (hop == 1 && has_nodes(plan->config))) continue;
    throw invalid("plan.exchanges[" + std::to_string(e) + "].hop", hop,
                  "0 (the direct way), or 1 (by node) between several nodes");
  }
  if (communicator.num_ranks() != plan->config.num_ranks) {
    throw invalid("communicator.num_ranks", communicator.num_ranks(),
                  std::to_string(plan->config.num_ranks) + " (the plan's)");
  }
  check_choices(options);
}

void check_pass_args(const RankSteps& steps, const AttentionBackend& backend,
                     const PassArgs& args) {
  const AttentionInputs& inputs = args.inputs;
  check_plan_shapes(steps, inputs);
  if (args.pass == Pass::Forward) {
    return check_attention(backend.limits(), forward_args(inputs, args.result), inputs.q.device);
  }
  BackwardArgs backward =
      backward_args(inputs, args.result, args.output_gradients, args.input_gradients);
  // A sink may come without a place for its gradient.
  if (backward.dsink.empty()) backward.dsink = inputs.sink;
  check_attention(backend.limits(), backward, inputs.q.device);
}

void check_stream(const comm::RowExchanger& exchanger, const Communicator& communicator,
                  std::int32_t device, void* stream) {
  if (device == kCpuDevice || communicator.num_ranks() == 1 || exchanger.is_capturable()) return;
  check_not_captured(stream, "attention over ranks, but over nvlink and nccl");
}

}  // namespace magi
