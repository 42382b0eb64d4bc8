// SPDX-License-Identifier: Apache-2.0
#include "runtime/check_attention.hpp"

#include <cmath>

#include "base/check.hpp"
#include "runtime/tensors/check_tensor.hpp"
#include "runtime/tensors/elements.hpp"

namespace magi {
namespace {

struct NamedTensor {
  const char* name;
  const TensorView& tensor;
};

void check_params(const AttentionParams& params) {
  if (!std::isfinite(params.softmax_scale)) {
    throw invalid("softmax_scale", params.softmax_scale,
                  "a finite number (0: 1 / sqrt(head_dim_qk))");
  }
  if (!std::isfinite(params.softcap) || params.softcap < 0.0) {
    throw invalid("softcap", params.softcap, "0 (off) or a positive finite number");
  }
  const auto layout = static_cast<std::int32_t>(params.sink_layout);
  if (layout != 0 && layout != 1) throw invalid("sink_layout", layout, "0 (sh) or 1 (ssh)");
}

struct Extents {
  std::int64_t rows_q, rows_k, heads_q, heads_kv, dim_qk, dim_v;
  std::int32_t device;      ///< of all tensors of the call: that of q
  bool takes_spread_sinks;  ///< AttentionBackend
};

Extents extents_of(const RankSteps& steps, const AttentionBackend& backend, std::int32_t device) {
  const PlanConfig& config = steps.plan.config;
  const HeadShares& shares = steps.shares;
  return {.rows_q = shares.rows_q,
          .rows_k = shares.rows_k,
          .heads_q = std::int64_t{config.num_heads_q} * shares.count,
          .heads_kv = std::int64_t{config.num_heads_kv} * shares.count,
          .dim_qk = config.head_dim_qk,
          .dim_v = config.head_dim_v,
          .device = device,
          .takes_spread_sinks = backend.takes_spread_sinks()};
}

void check_sink(const char* name, const TensorView& sink, const AttentionParams& params,
                const Extents& n, DType dtype) {
  check_tensor_on(n.device, name, sink);
  const bool is_per_row = params.sink_layout == SinkLayout::RowSinkHead;
  const std::int32_t rank = is_per_row ? 3 : 2;
  if (sink.rank != rank) {
    throw invalid(std::string(name) + ".rank", sink.rank,
                  is_per_row ? "3 ([rows_q, sinks, heads_q])" : "2 ([sinks, heads_q])");
  }
  const std::int64_t num_sinks = sink.shape[static_cast<std::size_t>(rank - 2)];
  if (num_sinks < 1 || num_sinks > kMaxSinks) {
    throw invalid(std::string(name) + " count", num_sinks, "1 to 8");
  }
  const bool is_dense = !n.takes_spread_sinks;
  if (is_per_row) {
    return check_tensor(sink, {name, {n.rows_q, num_sinks, n.heads_q}, {dtype}, is_dense},
                        n.device);
  }
  check_tensor(sink, {name, {num_sinks, n.heads_q}, {dtype}, is_dense}, n.device);
}

void check_inputs(const Extents& n, const AttentionLimits& limits, const AttentionInputs& inputs) {
  check_params(inputs.params);
  check_tensor(inputs.q,
               {"q",
                {n.rows_q, n.heads_q, n.dim_qk},
                {DType::Float64, DType::Float32, DType::Float16, DType::BFloat16}},
               n.device);
  const DType type = inputs.q.dtype;
  check_type(limits, "q.dtype", type);
  check_tensor(inputs.k, {"k", {n.rows_k, n.heads_kv, n.dim_qk}, {type}}, n.device);
  check_tensor(inputs.v, {"v", {n.rows_k, n.heads_kv, n.dim_v}, {type}}, n.device);
  if (inputs.sink.empty()) return;
  check_sink("sink", inputs.sink, inputs.params, n, accumulator_type(type));
}

void check_out_and_lse(const Extents& n, DType type, const AttentionResult& result) {
  const DType wide = accumulator_type(type);
  check_tensor(result.out, {"out", {n.rows_q, n.heads_q, n.dim_v}, {type, wide}}, n.device);
  check_tensor(result.lse, {"lse", {n.rows_q, n.heads_q}, {wide}, false}, n.device);
}

/// Strides and options that a backend takes; equal on all ranks for options.
void check_taken(const AttentionLimits& limits, const AttentionInputs& inputs,
                 const AttentionFeatures& features, std::initializer_list<NamedTensor> tensors) {
  check_options(limits, inputs.params, features);
  for (const auto& [name, tensor] :
       {NamedTensor{"q", inputs.q}, {"k", inputs.k}, {"v", inputs.v}}) {
    check_layout(limits, name, tensor);
  }
  for (const auto& [name, tensor] : tensors) check_layout(limits, name, tensor);
}

}  // namespace

void check_forward(const RankSteps& steps, const AttentionBackend& backend,
                   const AttentionInputs& inputs, const AttentionResult& result) {
  const AttentionLimits& limits = backend.limits();
  const Extents n = extents_of(steps, backend, inputs.q.device);
  check_inputs(n, limits, inputs);
  check_out_and_lse(n, inputs.q.dtype, result);
  if (!result.max_logits.empty()) {
    check_tensor(result.max_logits, {"max_logits", {n.heads_q}, {accumulator_type(inputs.q.dtype)}},
                 n.device);
  }
  check_taken(limits, inputs,
              {.has_sink = !inputs.sink.empty(), .has_max_logits = !result.max_logits.empty()},
              {{"out", result.out}});
}

void check_backward(const RankSteps& steps, const AttentionBackend& backend,
                    const AttentionInputs& inputs, const AttentionResult& result,
                    const OutputGradients& output_gradients,
                    const InputGradients& input_gradients) {
  const AttentionLimits& limits = backend.limits();
  const Extents n = extents_of(steps, backend, inputs.q.device);
  check_inputs(n, limits, inputs);
  const DType type = inputs.q.dtype;
  const DType wide = accumulator_type(type);
  check_out_and_lse(n, type, result);
  check_tensor(output_gradients.dout, {"dout", {n.rows_q, n.heads_q, n.dim_v}, {type, wide}},
               n.device);
  if (!output_gradients.dlse.empty()) {
    check_tensor(output_gradients.dlse, {"dlse", {n.rows_q, n.heads_q}, {wide}, false}, n.device);
  }
  check_tensor(input_gradients.dq, {"dq", {n.rows_q, n.heads_q, n.dim_qk}, {type, wide}}, n.device);
  check_tensor(input_gradients.dk, {"dk", {n.rows_k, n.heads_kv, n.dim_qk}, {type, wide}},
               n.device);
  check_tensor(input_gradients.dv, {"dv", {n.rows_k, n.heads_kv, n.dim_v}, {type, wide}}, n.device);
  for (const auto& [name, tensor] :
       {NamedTensor{"out", result.out}, {"dout", output_gradients.dout}}) {
    if (limits.has_float_outputs || tensor.dtype == type) continue;
    throw invalid(std::string(name) + ".dtype", dtype_name(tensor.dtype), dtype_name(type));
  }
  check_taken(limits, inputs,
              {.has_sink = !inputs.sink.empty(), .has_dlse = !output_gradients.dlse.empty()},
              {{"out", result.out},
               {"dout", output_gradients.dout},
               {"dq", input_gradients.dq},
               {"dk", input_gradients.dk},
               {"dv", input_gradients.dv}});
  if (input_gradients.dsink.empty()) return;
  if (inputs.sink.empty()) throw invalid("sink", "empty", "the sink whose gradient is asked for");
  check_sink("dsink", input_gradients.dsink, inputs.params, n, wide);
  const std::size_t axis = inputs.params.sink_layout == SinkLayout::RowSinkHead ? 1 : 0;
  if (input_gradients.dsink.shape[axis] != inputs.sink.shape[axis]) {
    throw invalid("dsink count", input_gradients.dsink.shape[axis],
                  std::to_string(inputs.sink.shape[axis]) + " (the sink's)");
  }
}

}  // namespace magi
