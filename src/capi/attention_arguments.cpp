// SPDX-License-Identifier: Apache-2.0
#include "capi/attention_arguments.hpp"

#include "capi/outputs.hpp"

namespace magi::capi {

AttentionInputs read_inputs(const magi_attention_inputs* inputs) {
  const magi_attention_inputs given = read_struct(inputs, "inputs");
  if (given.sink_layout != MAGI_SINK_HEAD && given.sink_layout != MAGI_ROW_SINK_HEAD) {
    throw invalid("inputs.sink_layout", given.sink_layout, "0 (sh) or 1 (ssh)");
  }
  return {.q = read_tensor(given.q, "q"),
          .k = read_tensor(given.k, "k"),
          .v = read_tensor(given.v, "v"),
          .sink = read_optional_tensor(given.sink, "sink"),
          .params = {.softmax_scale = given.softmax_scale,
                     .softcap = given.softcap,
                     .sink_layout = static_cast<SinkLayout>(given.sink_layout)},
          .is_fast_backward = read_flag(given.is_fast_backward, "inputs.is_fast_backward")};
}

AttentionResult read_result(const magi_attention_result* result) {
  const magi_attention_result given = read_struct(result, "result");
  return {.out = read_tensor(given.out, "out"),
          .lse = read_tensor(given.lse, "lse"),
          .max_logits = read_optional_tensor(given.max_logits, "max_logits")};
}

Gradients read_gradients(const magi_attention_gradients* gradients) {
  const magi_attention_gradients given = read_struct(gradients, "gradients");
  return {.output = {.dout = read_tensor(given.dout, "dout"),
                     .dlse = read_optional_tensor(given.dlse, "dlse")},
          .input = {.dq = read_tensor(given.dq, "dq"),
                    .dk = read_tensor(given.dk, "dk"),
                    .dv = read_tensor(given.dv, "dv"),
                    .dsink = read_optional_tensor(given.dsink, "dsink")}};
}

DeviceWorkspace read_workspace(const magi_workspace* workspace) {
  if (workspace == nullptr) return {};
  const magi_workspace given = read_struct(workspace, "workspace");
  return {.data = given.data, .size_bytes = static_cast<std::int64_t>(given.size_bytes)};
}

ForwardArgs read_forward(const magi_attention_inputs* inputs, const magi_attention_result* result) {
  const AttentionInputs in = read_inputs(inputs);
  const AttentionResult out = read_result(result);
  check_outputs(in, out);
  return forward_args(in, out);
}

BackwardArgs read_backward(const magi_attention_inputs* inputs, const magi_attention_result* result,
                           const magi_attention_gradients* gradients) {
  const AttentionInputs in = read_inputs(inputs);
  const AttentionResult out = read_result(result);
  const Gradients given = read_gradients(gradients);
  check_outputs(in, out, given.output, given.input);
  BackwardArgs args = backward_args(in, out, given.output, given.input);
  if (args.dsink.empty()) args.sink = {};
  return args;
}

}  // namespace magi::capi
