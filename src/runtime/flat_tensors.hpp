// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "runtime/rank_steps.hpp"
#include "runtime/step_call.hpp"

// Tensors [rows, heads, ...] as those of flat rows, [shares * rows per share, heads of a share,
// ...], for plans whose heads are in several shares.
namespace magi {

/// A view of a tensor as one of flat rows would be: its shape, and the given memory without
/// meaning. One that is not given stays so.
TensorView flat_shape(const TensorView& tensor, const HeadShares& shares,
                      std::int32_t rows_per_share);

/// What a call reads and writes in flat rows, in memory of the call. The tensors of a pass are
/// lent when it has begun; before, they have shapes alone.
class FlatForward {
 public:
  FlatForward(const HeadShares& shares, const AttentionInputs& inputs,
              const AttentionResult& result);
  const AttentionInputs& inputs() const { return inputs_; }
  const AttentionResult& result() const { return result_; }
  /// Lends memory, and copies what the call reads.
  void fill(StepCall& call);
  /// Copies results to where the caller wants them.
  void give(StepCall& call) const;

 private:
  const HeadShares& shares_;
  const AttentionInputs& given_inputs_;
  const AttentionResult& given_result_;
  AttentionInputs inputs_;
  AttentionResult result_;
};

class FlatBackward {
 public:
  FlatBackward(const HeadShares& shares, const AttentionInputs& inputs,
               const AttentionResult& result, const OutputGradients& output_gradients,
               const InputGradients& input_gradients);
  const AttentionInputs& inputs() const { return inputs_; }
  const AttentionResult& result() const { return result_; }
  const OutputGradients& output_gradients() const { return output_gradients_; }
  const InputGradients& input_gradients() const { return input_gradients_; }
  void fill(StepCall& call);
  void give(StepCall& call) const;

 private:
  const HeadShares& shares_;
  const AttentionInputs& given_inputs_;
  const AttentionResult& given_result_;
  const OutputGradients& given_output_gradients_;
  const InputGradients& given_input_gradients_;
  AttentionInputs inputs_;
  AttentionResult result_;
  OutputGradients output_gradients_;
  InputGradients input_gradients_;
};

}  // namespace magi
