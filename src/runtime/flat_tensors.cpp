// SPDX-License-Identifier: Apache-2.0
#include "runtime/flat_tensors.hpp"

#include "runtime/tensors/elements.hpp"

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

/// The same of a tensor of per-share rows, less the rows that fill up a short last chunk.
TensorView flat_by_share(const TensorView& flat, std::int32_t num_shares, std::int64_t rows) {
  TensorView view = flat;
  const std::int64_t rows_per_share = flat.shape[0] / num_shares;
  view.rank = 4;
  view.shape = {num_shares, rows, flat.shape[1], flat.rank > 2 ? flat.shape[2] : 1};
  view.stride = {rows_per_share * flat.stride[0], flat.stride[0], flat.stride[1],
                 flat.rank > 2 ? flat.stride[2] : 1};
  return view;
}

/// A view of a tensor as one of per-share rows would be: its shape, and the given memory without
/// meaning. One that is not given stays so.
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

TensorView lend_flat(const TensorView& shape, StepMemory& memory) {
  TensorView flat = memory.lend(
      shape.dtype, {shape.shape[0], shape.shape[1], shape.rank > 2 ? shape.shape[2] : 1});
  flat.rank = shape.rank;
  return flat;
}

/// Rows that no one holds are cleared: a kernel reads them beside others, and what it makes of them
/// must be a number.
void copy_in(StepCall& call, const TensorView& given, const TensorView& flat) {
  const std::int32_t num_shares = call.steps.shares.count;
  const std::int64_t rows = given.shape[0];
  const std::int64_t rows_per_share = flat.shape[0] / num_shares;
  for (std::int64_t end = rows_per_share; rows < rows_per_share && end <= flat.shape[0];
       end += rows_per_share) {
    clear_elements(flat.slice(0, end - rows_per_share + rows, end), call.stream);
  }
  copy_elements(by_share(given, num_shares), flat_by_share(flat, num_shares, rows), call.stream);
}

}  // namespace

FlatTensors::FlatTensors(StepCall& call) : call_(call) {
  const HeadShares& shares = call.steps.shares;
  for (std::size_t r = 0; r < given_.size(); ++r) {
    const auto role = static_cast<Role>(r);
    given_[r] = call.own(role);
    for (const TensorView& tensor : given_[r]) {
      flat_[r].push_back(flat_shape(
          tensor, shares,
          space_of(role) == Space::Queries ? shares.rows_per_share_q : shares.rows_per_share_k));
    }
    call.set_own(role, flat_[r]);
  }
}

void FlatTensors::fill() {
  for (std::size_t r = 0; r < given_.size(); ++r) {
    const auto role = static_cast<Role>(r);
    for (std::size_t i = 0; i < given_[r].size(); ++i) {
      if (!is_given(given_[r][i])) continue;
      flat_[r][i] = lend_flat(flat_[r][i], call_.memory);
      if (!is_returning(role)) copy_in(call_, given_[r][i], flat_[r][i]);
    }
    call_.set_own(role, flat_[r]);
  }
}

void FlatTensors::give() const {
  const std::int32_t num_shares = call_.steps.shares.count;
  for (std::size_t r = 0; r < given_.size(); ++r) {
    if (!is_returning(static_cast<Role>(r))) continue;
    for (std::size_t i = 0; i < given_[r].size(); ++i) {
      const TensorView& given = given_[r][i];
      copy_elements(flat_by_share(flat_[r][i], num_shares, given.shape[0]),
                    by_share(given, num_shares), call_.stream);
    }
  }
}

}  // namespace magi
