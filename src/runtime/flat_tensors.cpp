// SPDX-License-Identifier: Apache-2.0
#include "runtime/flat_tensors.hpp"

#include "runtime/tensors/elements.hpp"

namespace magi {
namespace {

/// [shares, rows, heads of a share, dim] of a tensor [rows, heads, dim] or [rows, heads]; or of one
/// of per-share rows, less those that fill up a short last chunk.
TensorView by_share(const TensorView& tensor, std::int32_t num_shares, std::int64_t num_rows,
                    bool is_flat) {
  const std::int64_t heads = is_flat ? tensor.shape[1] : tensor.shape[1] / num_shares;
  const std::int64_t share_stride =
      is_flat ? tensor.shape[0] / num_shares * tensor.stride[0] : heads * tensor.stride[1];
  const bool has_dim = tensor.rank > 2;
  TensorView view = tensor;
  view.rank = 4;
  view.shape = {num_shares, num_rows, heads, has_dim ? tensor.shape[2] : 1};
  view.stride = {share_stride, tensor.stride[0], tensor.stride[1], has_dim ? tensor.stride[2] : 1};
  return view;
}

/// A view of a tensor as one of per-share rows would be: its shape, and the given memory without
/// meaning. One that is not given stays so.
TensorView flat_shape(const TensorView& tensor, const HeadShares& shares,
                      std::int32_t rows_per_share) {
  if (!is_given(tensor)) return tensor;
  const std::int64_t rows = std::int64_t{shares.count} * rows_per_share;
  const std::int64_t heads = tensor.shape[1] / shares.count;
  return tensor.rank > 2 ? contiguous_view(tensor.data, tensor.dtype,
                                           {rows, heads, tensor.shape[2]}, tensor.device)
                         : contiguous_view(tensor.data, tensor.dtype, {rows, heads}, tensor.device);
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
  copy_elements(by_share(given, num_shares, rows, false), by_share(flat, num_shares, rows, true),
                call.stream);
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
      TensorView& flat = flat_[r][i];
      flat.data = call_.memory.lend(flat.dtype, {flat.num_elements()}).data;
      if (!is_returning(role)) copy_in(call_, given_[r][i], flat);
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
      copy_elements(by_share(flat_[r][i], num_shares, given.shape[0], true),
                    by_share(given, num_shares, given.shape[0], false), call_.stream);
    }
  }
}

}  // namespace magi
