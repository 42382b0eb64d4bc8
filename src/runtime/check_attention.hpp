// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/rows/row_exchanger.hpp"
#include "kernels/attention/backend.hpp"
#include "magi/runtime.hpp"
#include "runtime/rank_steps.hpp"

// The arguments of a call and their checks, before anything is sent. Each check throws
// InvalidArgument naming the tensor or value that does not fit.
namespace magi {

/// The arguments of one pass, which outlive it. A forward has no gradients.
struct PassArgs {
  Pass pass = Pass::Forward;
  const AttentionInputs& inputs;
  const AttentionResult& result;
  OutputGradients output_gradients = {};
  InputGradients input_gradients = {};
  TensorView whole_out = {};  ///< of a section of the heads: out of all of them
};

/// The arguments of a pass, without slices.
ForwardArgs forward_args(const AttentionInputs& inputs, const AttentionResult& result);
BackwardArgs backward_args(const AttentionInputs& inputs, const AttentionResult& result,
                           const OutputGradients& output, const InputGradients& input);

/// The plan was made for as many ranks, and some device allows the options: StepMemory checks the
/// rest, when a call tells the device.
void check_setup(const Plan* plan, const Communicator& communicator,
                 const AttentionOptions& options);
/// A stream that is being captured has an exchanger that takes it.
void check_stream(const comm::RowExchanger& exchanger, const Communicator& communicator,
                  std::int32_t device, void* stream);
/// The tensors fit the plan on this rank, lie in one memory and are what the backend takes.
void check_pass_args(const RankSteps& steps, const AttentionBackend& backend, const PassArgs& args);

}  // namespace magi
