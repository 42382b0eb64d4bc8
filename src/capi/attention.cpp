// SPDX-License-Identifier: Apache-2.0
#include "capi/attention_arguments.hpp"
#include "capi/handles.hpp"
#include "capi/outputs.hpp"

namespace magi::capi {
namespace {

DeviceAllocator read_allocator(const magi_device_allocator* allocator) {
  const magi_device_allocator given = read_struct(allocator, "options.allocator");
  if (given.allocate == nullptr || given.release == nullptr) {
    throw invalid("options.allocator", "a table with a null entry", "allocate and release");
  }
  return {.allocate =
              [given](std::size_t size_bytes, std::int32_t device, void* stream) {
                return given.allocate(given.context, size_bytes, device, stream);
              },
          .release =
              [given](void* data, std::size_t size_bytes, std::int32_t device, void* stream) {
                given.release(given.context, data, size_bytes, device, stream);
              }};
}

AttentionOptions read_options(const magi_attention_options* options) {
  const magi_attention_options given = read_struct(options, "options");
  AttentionOptions result{
      .exchange_sms = given.exchange_sms,
      .are_partials_rounded = read_flag(given.are_partials_rounded, "options.are_partials_rounded"),
      .backend = read_name(given.backend)};
  if (given.allocator != nullptr) result.allocator = read_allocator(given.allocator);
  return result;
}

/// The inputs of a call by a plan, whose object has the choices that other calls find here.
AttentionInputs read_planned_inputs(const magi_attention_inputs* inputs) {
  const AttentionInputs result = read_inputs(inputs);
  if (inputs->backend != nullptr) {
    throw invalid("inputs.backend", inputs->backend,
                  "null, as magi_attention_create_with takes the name");
  }
  if (inputs->sm_margin != 0) {
    throw invalid("inputs.sm_margin", inputs->sm_margin,
                  "0, as magi_attention_create_with takes exchange_sms");
  }
  return result;
}

std::unique_ptr<magi_attention> create(const magi_plan* plan, magi_communicator* communicator,
                                       const AttentionOptions& options) {
  const auto& shared_plan = require(plan, "plan").plan;
  const auto shared = require(communicator, "communicator").communicator;
  return std::make_unique<magi_attention>(
      magi_attention{shared, DistributedAttention(shared_plan, *shared, options)});
}

}  // namespace
}  // namespace magi::capi

using namespace magi::capi;

magi_status magi_attention_create(const magi_plan* plan, magi_communicator* communicator,
                                  magi_attention** attention) {
  return giving(attention, "attention", [&] { return create(plan, communicator, {}); });
}

void magi_attention_options_init(magi_attention_options* options) {
  init_struct(options, magi_attention_options{.struct_size = sizeof(magi_attention_options),
                                              .allocator = nullptr,
                                              .exchange_sms = magi::AttentionOptions{}.exchange_sms,
                                              .backend = nullptr,
                                              .are_partials_rounded = 0});
}

magi_status magi_attention_create_with(const magi_plan* plan, magi_communicator* communicator,
                                       const magi_attention_options* options,
                                       magi_attention** attention) {
  return giving(attention, "attention",
                [&] { return create(plan, communicator, read_options(options)); });
}

void magi_attention_destroy(magi_attention* attention) { delete attention; }

magi_status magi_attention_workspace_bytes(const magi_attention* attention, size_t* size_bytes) {
  return guarded([&] {
    require(size_bytes, "size_bytes") = require(attention, "attention").attention.workspace_bytes();
  });
}

magi_status magi_attention_forward(magi_attention* attention, const magi_attention_inputs* inputs,
                                   const magi_attention_result* result, void* stream) {
  return guarded([&] {
    magi_attention& given = require(attention, "attention");
    const magi::AttentionInputs in = read_planned_inputs(inputs);
    const magi::AttentionResult out = read_result(result);
    check_outputs(in, out);
    given.attention.forward(in, out, stream);
  });
}

magi_status magi_attention_backward(magi_attention* attention, const magi_attention_inputs* inputs,
                                    const magi_attention_result* result,
                                    const magi_attention_gradients* gradients, void* stream) {
  return guarded([&] {
    magi_attention& given = require(attention, "attention");
    const magi::AttentionInputs in = read_planned_inputs(inputs);
    const magi::AttentionResult out = read_result(result);
    const Gradients grads = read_gradients(gradients);
    check_outputs(in, out, grads.output, grads.input);
    given.attention.backward(in, out, grads.output, grads.input, stream);
  });
}

magi_status magi_attention_start_trace(magi_attention* attention) {
  return guarded([&] { require(attention, "attention").attention.start_trace(); });
}

magi_status magi_attention_stop_trace(magi_attention* attention, magi_buffer** spans) {
  return giving(spans, "spans", [&] {
    std::vector<std::int64_t> table;
    for (const magi::StepSpan& span : require(attention, "attention").attention.stop_trace()) {
      table.insert(table.end(), {static_cast<std::int64_t>(span.kind), span.is_backward ? 1 : 0,
                                 span.call, span.step, span.begin_ns, span.end_ns});
    }
    return table;
  });
}
