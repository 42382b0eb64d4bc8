// SPDX-License-Identifier: Apache-2.0
#include "capi/attention_arguments.hpp"
#include "capi/handles.hpp"
#include "capi/status.hpp"

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
