// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/supplied_table.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "magi/error.hpp"

namespace magi {
namespace {

magi_tensor to_c(const TensorView& tensor) {
  magi_tensor result{.struct_size = sizeof(magi_tensor),
                     .data = tensor.data,
                     .dtype = static_cast<std::int32_t>(tensor.dtype),
                     .device = tensor.device,
                     .rank = tensor.rank,
                     .shape = {},
                     .stride = {}};
  std::copy(tensor.shape.begin(), tensor.shape.end(), result.shape);
  std::copy(tensor.stride.begin(), tensor.stride.end(), result.stride);
  return result;
}

/// A tensor of a call as the C structs point to it; no pointer where there is none.
class CTensor {
 public:
  explicit CTensor(const TensorView& tensor) : tensor_(to_c(tensor)) {}
  const magi_tensor* get() const { return tensor_.rank == 0 ? nullptr : &tensor_; }

 private:
  magi_tensor tensor_;
};

/// A problem without tensors.
magi_attention_inputs to_c(const AttentionParams& params) {
  return {.struct_size = sizeof(magi_attention_inputs),
          .q = nullptr,
          .k = nullptr,
          .v = nullptr,
          .sink = nullptr,
          .softmax_scale = params.softmax_scale,
          .softcap = params.softcap,
          .sink_layout = static_cast<std::int32_t>(params.sink_layout),
          .sm_margin = 0,
          .is_fast_backward = 0,
          .backend = nullptr};
}

}  // namespace

SuppliedTable::~SuppliedTable() {
  if (functions.destroy != nullptr) functions.destroy(functions.context);
}

void SuppliedTable::check(std::int32_t status) const {
  if (status == MAGI_OK) return;
  const char* said = functions.last_error(functions.context);
  const std::string text = "backend " + name + ": " + (said != nullptr ? said : "a call failed");
  if (status == MAGI_INVALID_ARGUMENT) throw InvalidArgument(text);
  if (status == MAGI_CUDA_ERROR) throw CudaError(text, 0);
  throw InternalError(text);
}

SuppliedHandle::SuppliedHandle(std::shared_ptr<const SuppliedTable> table,
                               const SuppliedProblem& problem)
    : table_(std::move(table)) {
  std::vector<std::int32_t> rows;
  rows.reserve(problem.slices.size() * 6);
  for (const BandSlice& s : problem.slices) {
    rows.insert(rows.end(), {s.q0, s.q1, s.k0, s.k1, s.d_min, s.d_max});
  }
  const CTensor q(problem.q), k(problem.k), v(problem.v);
  const magi_attention_problem given{.struct_size = sizeof(magi_attention_problem),
                                     .q = q.get(),
                                     .k = k.get(),
                                     .v = v.get(),
                                     .slices = rows.data(),
                                     .num_slices = std::ssize(problem.slices),
                                     .is_backward = problem.is_backward,
                                     .is_deterministic = problem.is_deterministic,
                                     .sm_margin = problem.sm_margin};
  table_->check(table_->functions.plan(table_->functions.context, &given, &handle_));
}

SuppliedHandle::~SuppliedHandle() { table_->functions.release(table_->functions.context, handle_); }

void SuppliedHandle::forward(const ForwardArgs& args, void* stream) const {
  const CTensor q(args.q), k(args.k), v(args.v), sink(args.sink);
  const CTensor out(args.out), lse(args.lse), max_logits(args.max_logits);
  magi_attention_inputs inputs = to_c(args.params);
  inputs.q = q.get();
  inputs.k = k.get();
  inputs.v = v.get();
  inputs.sink = sink.get();
  const magi_attention_result result{.struct_size = sizeof(magi_attention_result),
                                     .out = out.get(),
                                     .lse = lse.get(),
                                     .max_logits = max_logits.get()};
  const magi_attention_backend& table = table_->functions;
  table_->check(table.forward(table.context, handle_, &inputs, &result, stream));
}

void SuppliedHandle::backward(const BackwardArgs& args, void* stream) const {
  const CTensor q(args.q), k(args.k), v(args.v), sink(args.sink), out(args.out), lse(args.lse);
  const CTensor dout(args.dout), dlse(args.dlse);
  const CTensor dq(args.dq), dk(args.dk), dv(args.dv), dsink(args.dsink);
  magi_attention_inputs inputs = to_c(args.params);
  inputs.q = q.get();
  inputs.k = k.get();
  inputs.v = v.get();
  inputs.sink = sink.get();
  const magi_attention_result result{.struct_size = sizeof(magi_attention_result),
                                     .out = out.get(),
                                     .lse = lse.get(),
                                     .max_logits = nullptr};
  const magi_attention_gradients gradients{.struct_size = sizeof(magi_attention_gradients),
                                           .dout = dout.get(),
                                           .dlse = dlse.get(),
                                           .dq = dq.get(),
                                           .dk = dk.get(),
                                           .dv = dv.get(),
                                           .dsink = dsink.get(),
                                           .workspace = nullptr};
  const magi_attention_backend& table = table_->functions;
  table_->check(table.backward(table.context, handle_, &inputs, &result, &gradients, stream));
}

}  // namespace magi
