// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/attention/backend.hpp"
#include "magi/runtime.hpp"
#include "runtime/rank_steps.hpp"

// Checks of a call's arguments, before anything is sent. Each throws InvalidArgument naming the
// tensor or value that does not fit.
namespace magi {

/// The tensors fit the plan on this rank, lie in one memory and are what the backend takes.
void check_forward(const RankSteps& steps, const AttentionBackend& backend,
                   const AttentionInputs& inputs, const AttentionResult& result);
void check_backward(const RankSteps& steps, const AttentionBackend& backend,
                    const AttentionInputs& inputs, const AttentionResult& result,
                    const OutputGradients& output_gradients, const InputGradients& input_gradients);

}  // namespace magi
