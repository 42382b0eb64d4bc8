// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "capi/arguments.hpp"
#include "magi/attention_cuda.hpp"
#include "magi/runtime.hpp"
#include "runtime/check_attention.hpp"

// The structs of attention calls.
namespace magi::capi {

struct Gradients {
  OutputGradients output;
  InputGradients input;
};

AttentionInputs read_inputs(const magi_attention_inputs* inputs);
AttentionResult read_result(const magi_attention_result* result);
Gradients read_gradients(const magi_attention_gradients* gradients);

/// No memory where the caller gives none.
DeviceWorkspace read_workspace(const magi_workspace* workspace);

/// The arguments of a call's structs without slices; its outputs are checked.
ForwardArgs read_forward(const magi_attention_inputs* inputs, const magi_attention_result* result);
BackwardArgs read_backward(const magi_attention_inputs* inputs, const magi_attention_result* result,
                           const magi_attention_gradients* gradients);

}  // namespace magi::capi
