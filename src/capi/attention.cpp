// SPDX-License-Identifier: Apache-2.0
#include "magi/attention.hpp"

#include "capi/handles.hpp"
#include "capi/status.hpp"

namespace magi::capi {
namespace {

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
                     .sink_layout = static_cast<SinkLayout>(given.sink_layout)}};
}

AttentionResult read_result(const magi_attention_result* result) {
  const magi_attention_result given = read_struct(result, "result");
  return {.out = read_tensor(given.out, "out"),
          .lse = read_tensor(given.lse, "lse"),
          .max_logits = read_optional_tensor(given.max_logits, "max_logits")};
}

struct Gradients {
  OutputGradients output;
  InputGradients input;
};

Gradients read_gradients(const magi_attention_gradients* gradients) {
  const magi_attention_gradients given = read_struct(gradients, "gradients");
  return {.output = {.dout = read_tensor(given.dout, "dout"),
                     .dlse = read_optional_tensor(given.dlse, "dlse")},
          .input = {.dq = read_tensor(given.dq, "dq"),
                    .dk = read_tensor(given.dk, "dk"),
                    .dv = read_tensor(given.dv, "dv"),
                    .dsink = read_optional_tensor(given.dsink, "dsink")}};
}

/// The mask's rows must be the tensors'.
void check_rows(const Mask& mask, const AttentionInputs& inputs) {
  if (inputs.q.shape[0] != mask.rows_q) {
    throw invalid("q.shape[0]", inputs.q.shape[0], std::to_string(mask.rows_q) + " (the mask's)");
  }
  if (inputs.k.shape[0] != mask.rows_k) {
    throw invalid("k.shape[0]", inputs.k.shape[0], std::to_string(mask.rows_k) + " (the mask's)");
  }
}

}  // namespace
}  // namespace magi::capi

using namespace magi::capi;

magi_status magi_attention_create(const magi_plan* plan, magi_communicator* communicator,
                                  magi_attention** attention) {
  return guarded([&] {
    require(attention, "attention");
    require(plan, "plan");
    const auto shared = require(communicator, "communicator").communicator;
    give(std::make_unique<magi_attention>(
             magi_attention{shared, magi::DistributedAttention(plan->plan, *shared)}),
         attention);
  });
}

void magi_attention_destroy(magi_attention* attention) { delete attention; }

magi_status magi_attention_workspace_bytes(const magi_attention* attention, size_t* size_bytes) {
  return guarded([&] {
    require(size_bytes, "size_bytes") = require(attention, "attention").attention.workspace_bytes();
  });
}

magi_status magi_attention_forward(magi_attention* attention, const magi_attention_inputs* inputs,
                                   const magi_attention_result* result, void* /*stream*/) {
  return guarded([&] {
    require(attention, "attention").attention.forward(read_inputs(inputs), read_result(result));
  });
}

magi_status magi_attention_backward(magi_attention* attention, const magi_attention_inputs* inputs,
                                    const magi_attention_result* result,
                                    const magi_attention_gradients* gradients, void* /*stream*/) {
  return guarded([&] {
    const Gradients given = read_gradients(gradients);
    require(attention, "attention")
        .attention.backward(read_inputs(inputs), read_result(result), given.output, given.input);
  });
}

magi_status magi_flex_attention_forward(const magi_mask* mask, const magi_attention_inputs* inputs,
                                        const magi_attention_result* result, void* /*stream*/) {
  return guarded([&] {
    const magi::Mask& given_mask = require(mask, "mask").mask;
    const magi::AttentionInputs in = read_inputs(inputs);
    const magi::AttentionResult out = read_result(result);
    check_rows(given_mask, in);
    magi::attention_forward_cpu({.q = in.q,
                                 .k = in.k,
                                 .v = in.v,
                                 .slices = given_mask.slices,
                                 .sink = in.sink,
                                 .out = out.out,
                                 .lse = out.lse,
                                 .max_logits = out.max_logits,
                                 .params = in.params});
  });
}

magi_status magi_flex_attention_backward(const magi_mask* mask, const magi_attention_inputs* inputs,
                                         const magi_attention_result* result,
                                         const magi_attention_gradients* gradients,
                                         void* /*stream*/) {
  return guarded([&] {
    const magi::Mask& given_mask = require(mask, "mask").mask;
    const magi::AttentionInputs in = read_inputs(inputs);
    const magi::AttentionResult out = read_result(result);
    const Gradients given = read_gradients(gradients);
    check_rows(given_mask, in);
    magi::attention_backward_cpu({.q = in.q,
                                  .k = in.k,
                                  .v = in.v,
                                  .slices = given_mask.slices,
                                  .out = out.out,
                                  .lse = out.lse,
                                  .dout = given.output.dout,
                                  .dlse = given.output.dlse,
                                  .sink = given.input.dsink.empty() ? magi::TensorView{} : in.sink,
                                  .dq = given.input.dq,
                                  .dk = given.input.dk,
                                  .dv = given.input.dv,
                                  .dsink = given.input.dsink,
                                  .params = in.params});
  });
}
