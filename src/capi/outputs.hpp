// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "magi/runtime.hpp"

// What a call writes must lie apart: each element of a tensor from the others, each output from the
// other outputs and from the inputs. Otherwise results would depend on the order of writes.
namespace magi::capi {

struct NamedTensor {
  const char* name;
  const TensorView& tensor;
};

/// Throws InvalidArgument naming the output. Tensors without data or elements overlap nothing. Of
/// tensors that are parts of one buffer those are told apart whose strides are the same, such as
/// the halves of [rows, 2, heads, dim].
void check_outputs(std::span<const NamedTensor> outputs, std::span<const NamedTensor> inputs);

void check_outputs(const AttentionInputs& inputs, const AttentionResult& result);
void check_outputs(const AttentionInputs& inputs, const AttentionResult& result,
                   const OutputGradients& output, const InputGradients& input);

}  // namespace magi::capi
