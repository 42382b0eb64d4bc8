// SPDX-License-Identifier: Apache-2.0
#include "runtime/flat_tensors.hpp"

#include "runtime/device_calls.hpp"
#include "runtime/elements.hpp"

namespace magi {
namespace {

/// [shares, rows, heads of a share, dim] of a tensor [rows, heads, dim] or [rows, heads].
TensorView by_share(const TensorView& tensor, std::int32_t num_shares) {
  TensorView view = tensor;
  const std::int64_t heads = tensor.shape[1] / num_shares;
  view.rank = 4;
  view.shape = {num_shares, tensor.shape[0], heads, tensor.rank > 2 ? tensor.shape[2] : 1};
  view.stride = {heads * tensor.stride[1], tensor.stride[0], tensor.stride[1],
                 tensor.rank > 2 ? tensor.stride[2] : 1};
  return view;
}

/// The same of a tensor of flat rows, less the rows that fill up a short last chunk.
TensorView by_share(const TensorView& flat, std::int32_t num_shares, std::int64_t rows) {
  TensorView view = flat;
  const std::int64_t rows_per_share = flat.shape[0] / num_shares;
  view.rank = 4;
  view.shape = {num_shares, rows, flat.shape[1], flat.rank > 2 ? flat.shape[2] : 1};
  view.stride = {rows_per_share * flat.stride[0], flat.stride[0], flat.stride[1],
                 flat.rank > 2 ? flat.stride[2] : 1};
  return view;
}

void copy(const TensorView& source, const TensorView& target, void* stream) {
  if (source.num_elements() == 0) return;
  if (source.device == kCpuDevice) return copy_elements(source, target);
  copy_device_elements(source, target, stream);
}

bool is_given(const TensorView& tensor) { return tensor.rank > 0; }

/// Moves the tensors of one call.
class Mover {
 public:
  Mover(StepCall& call, const HeadShares& shares) : call_(call), shares_(shares) {}

  void lend(TensorView& flat) const {
    if (!is_given(flat)) return;
    const TensorView shape = flat;
    flat = call_.memory.lend(shape.dtype,
                             {shape.shape[0], shape.shape[1], shape.rank > 2 ? shape.shape[2] : 1});
    flat.rank = shape.rank;
  }
  /// Rows that no one holds are cleared: a kernel reads them beside others, and what it makes of
  /// them must be a number.
  void fill(const TensorView& given, TensorView& flat) const {
    lend(flat);
    if (!is_given(flat)) return;
    const std::int64_t rows = given.shape[0];
    const std::int64_t rows_per_share = flat.shape[0] / shares_.count;
    for (std::int64_t end = rows_per_share; rows < rows_per_share && end <= flat.shape[0];
         end += rows_per_share) {
      call_.fill(flat.slice(0, end - rows_per_share + rows, end), 0.0);
    }
    copy(by_share(given, shares_.count), by_share(flat, shares_.count, rows), call_.stream);
  }
  void give(const TensorView& flat, const TensorView& given) const {
    copy(by_share(flat, shares_.count, given.shape[0]), by_share(given, shares_.count),
         call_.stream);
  }

 private:
  StepCall& call_;
  const HeadShares& shares_;
};

AttentionInputs flat_shapes(const HeadShares& shares, const AttentionInputs& inputs) {
  AttentionInputs flat = inputs;  // the sink, too: attends know their share
  flat.q = flat_shape(inputs.q, shares, shares.rows_per_share_q);
  flat.k = flat_shape(inputs.k, shares, shares.rows_per_share_k);
  flat.v = flat_shape(inputs.v, shares, shares.rows_per_share_k);
  return flat;
}

AttentionResult flat_shapes(const HeadShares& shares, const AttentionResult& result) {
  AttentionResult flat = result;  // max_logits, too
  flat.out = flat_shape(result.out, shares, shares.rows_per_share_q);
  flat.lse = flat_shape(result.lse, shares, shares.rows_per_share_q);
  return flat;
}

void fill_inputs(const Mover& mover, const AttentionInputs& given, AttentionInputs& flat) {
  mover.fill(given.q, flat.q);
  mover.fill(given.k, flat.k);
  mover.fill(given.v, flat.v);
}

}  // namespace

TensorView flat_shape(const TensorView& tensor, const HeadShares& shares,
                      std::int32_t rows_per_share) {
  if (!is_given(tensor)) return tensor;
  const std::int64_t rows = std::int64_t{shares.count} * rows_per_share;
  const std::int64_t heads = tensor.shape[1] / shares.count;
  TensorView flat = tensor.rank > 2
                        ? contiguous_view(tensor.data, tensor.dtype, {rows, heads, tensor.shape[2]})
                        : contiguous_view(tensor.data, tensor.dtype, {rows, heads});
  flat.device = tensor.device;
  return flat;
}

FlatForward::FlatForward(const HeadShares& shares, const AttentionInputs& inputs,
                         const AttentionResult& result)
    : shares_(shares),
      given_inputs_(inputs),
      given_result_(result),
      inputs_(flat_shapes(shares, inputs)),
      result_(flat_shapes(shares, result)) {}

void FlatForward::fill(StepCall& call) {
  const Mover mover(call, shares_);
  fill_inputs(mover, given_inputs_, inputs_);
  mover.lend(result_.out);
  mover.lend(result_.lse);
}

void FlatForward::give(StepCall& call) const {
  const Mover mover(call, shares_);
  mover.give(result_.out, given_result_.out);
  mover.give(result_.lse, given_result_.lse);
}

FlatBackward::FlatBackward(const HeadShares& shares, const AttentionInputs& inputs,
                           const AttentionResult& result, const OutputGradients& output_gradients,
                           const InputGradients& input_gradients)
    : shares_(shares),
      given_inputs_(inputs),
      given_result_(result),
      given_output_gradients_(output_gradients),
      given_input_gradients_(input_gradients),
      inputs_(flat_shapes(shares, inputs)),
      result_(flat_shapes(shares, result)),
      output_gradients_{.dout = flat_shape(output_gradients.dout, shares, shares.rows_per_share_q),
                        .dlse = flat_shape(output_gradients.dlse, shares, shares.rows_per_share_q)},
      input_gradients_{.dq = flat_shape(input_gradients.dq, shares, shares.rows_per_share_q),
                       .dk = flat_shape(input_gradients.dk, shares, shares.rows_per_share_k),
                       .dv = flat_shape(input_gradients.dv, shares, shares.rows_per_share_k),
                       .dsink = input_gradients.dsink} {}

void FlatBackward::fill(StepCall& call) {
  const Mover mover(call, shares_);
  fill_inputs(mover, given_inputs_, inputs_);
  mover.fill(given_result_.out, result_.out);
  mover.fill(given_result_.lse, result_.lse);
  mover.fill(given_output_gradients_.dout, output_gradients_.dout);
  mover.fill(given_output_gradients_.dlse, output_gradients_.dlse);
  mover.lend(input_gradients_.dq);
  mover.lend(input_gradients_.dk);
  mover.lend(input_gradients_.dv);
}

void FlatBackward::give(StepCall& call) const {
  const Mover mover(call, shares_);
  mover.give(input_gradients_.dq, given_input_gradients_.dq);
  mover.give(input_gradients_.dk, given_input_gradients_.dk);
  mover.give(input_gradients_.dv, given_input_gradients_.dv);
}

}  // namespace magi
