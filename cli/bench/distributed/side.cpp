// SPDX-License-Identifier: Apache-2.0
#include "bench/distributed/side.hpp"

#include <utility>

namespace magi::cli {
namespace {

/// Workspace of one run; empty where none is needed.
class Workspace {
 public:
  Workspace(RankDevice& device, std::int64_t size_bytes) {
    if (device.ordinal() == kCpuDevice || size_bytes == 0) return;
    memory_ = device.make(DType::Int32, {(size_bytes + 3) / 4});
    view_ = {memory_.view.data, size_bytes};
  }
  const DeviceWorkspace& view() const { return view_; }

 private:
  Array memory_;
  DeviceWorkspace view_;
};

}  // namespace

KernelAttention::KernelAttention(RankDevice& device, std::vector<BandSlice> slices)
    : device_(device), backend_(find_backend("", device.ordinal())), slices_(std::move(slices)) {}

void KernelAttention::attend(const AttentionTensors& tensors, bool is_merging) {
  const ForwardArgs args{.q = tensors.q,
                         .k = tensors.k,
                         .v = tensors.v,
                         .slices = slices_,
                         .out = tensors.out,
                         .lse = tensors.lse,
                         .is_merging = is_merging};
  if (forward_ == nullptr) forward_ = backend_->prepare_forward(args, {});
  const Workspace workspace(device_, forward_->workspace_bytes());
  forward_->run(args, workspace.view(), device_.stream());
}

void KernelAttention::add_gradients(const AttentionTensors& tensors, bool is_adding) {
  const BackwardArgs args{.q = tensors.q,
                          .k = tensors.k,
                          .v = tensors.v,
                          .slices = slices_,
                          .out = tensors.out,
                          .lse = tensors.lse,
                          .dout = tensors.dout,
                          .dq = tensors.dq,
                          .dk = tensors.dk,
                          .dv = tensors.dv,
                          .is_accumulating = is_adding,
                          .is_writing_keys = true};
  if (backward_ == nullptr) {
    backward_ = backend_->prepare_backward(args, {.is_deterministic = false});
  }
  const Workspace workspace(device_, backward_->workspace_bytes());
  backward_->run(args, workspace.view(), device_.stream());
}

AttentionTensors AttentionArrays::views() const {
  return {
      .q = q, .k = k, .v = v, .dout = dout, .out = out, .lse = lse, .dq = dq, .dk = dk, .dv = dv};
}

AttentionArrays make_results(RankDevice& device, const AttentionShape& shape, RowCounts rows) {
  const DType type = device.type();
  AttentionArrays arrays;
  arrays.out = device.make(type, {rows.q, shape.heads_q, shape.head_dim});
  arrays.lse = device.make(DType::Float32, {rows.q, shape.heads_q});
  arrays.dq = device.make(type, {rows.q, shape.heads_q, shape.head_dim});
  arrays.dk = device.make(type, {rows.k, shape.heads_kv, shape.head_dim});
  arrays.dv = device.make(type, {rows.k, shape.heads_kv, shape.head_dim});
  return arrays;
}

AttentionArrays make_arrays(RankDevice& device, const AttentionShape& shape, RowCounts rows) {
  AttentionArrays arrays = make_results(device, shape, rows);
  arrays.q = device.make(device.type(), {rows.q, shape.heads_q, shape.head_dim});
  arrays.k = device.make(device.type(), {rows.k, shape.heads_kv, shape.head_dim});
  arrays.v = device.make(device.type(), {rows.k, shape.heads_kv, shape.head_dim});
  arrays.dout = device.make(device.type(), {rows.q, shape.heads_q, shape.head_dim});
  return arrays;
}

}  // namespace magi::cli
