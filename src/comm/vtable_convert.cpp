// SPDX-License-Identifier: Apache-2.0
#include "comm/vtable_convert.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace magi::comm {

std::vector<magi_tensor> to_c(std::span<const TensorView> tensors) {
  std::vector<magi_tensor> result;
  for (const TensorView& tensor : tensors) {
    magi_tensor c{.struct_size = sizeof(magi_tensor),
                  .data = tensor.data,
                  .dtype = static_cast<std::int32_t>(tensor.dtype),
                  .device = tensor.device,
                  .rank = tensor.rank};
    std::copy(tensor.shape.begin(), tensor.shape.end(), c.shape);
    std::copy(tensor.stride.begin(), tensor.stride.end(), c.stride);
    result.push_back(c);
  }
  return result;
}

std::vector<magi_peer_rows> to_c(std::span<const PeerRows> records) {
  std::vector<magi_peer_rows> result;
  for (const PeerRows& record : records) {
    result.push_back({.peer = record.peer, .row = record.row, .num_rows = record.num_rows});
  }
  return result;
}

std::vector<TensorView> from_c(const magi_tensor* tensors, std::int32_t count) {
  std::vector<TensorView> result;
  for (std::int32_t i = 0; i < count; ++i) {
    const magi_tensor& c = tensors[i];
    if (c.struct_size < sizeof(magi_tensor)) {
      throw invalid("tensor.struct_size", c.struct_size,
                    std::to_string(sizeof(magi_tensor)) + " or more");
    }
    TensorView tensor{
        .data = c.data, .dtype = static_cast<DType>(c.dtype), .device = c.device, .rank = c.rank};
    std::copy(std::begin(c.shape), std::end(c.shape), tensor.shape.begin());
    std::copy(std::begin(c.stride), std::end(c.stride), tensor.stride.begin());
    result.push_back(tensor);
  }
  return result;
}

std::vector<PeerRows> from_c(const magi_peer_rows* records, std::int64_t count) {
  std::vector<PeerRows> result;
  for (std::int64_t i = 0; i < count; ++i) {
    result.push_back(
        {.peer = records[i].peer, .row = records[i].row, .num_rows = records[i].num_rows});
  }
  return result;
}

std::int32_t exchange_kind(ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum:
      return MAGI_EXCHANGE_SUM;
    case ReduceOp::LseMerge:
      return MAGI_EXCHANGE_LSE_MERGE;
  }
  throw invalid("op", static_cast<std::int32_t>(op), "0 (Sum) or 1 (LseMerge)");
}

void throw_status(std::int32_t status, std::int32_t failure, const std::string& text) {
  if (status == MAGI_VTABLE_INVALID_ARGUMENT) throw InvalidArgument(text);
  if (status == MAGI_VTABLE_CUDA_ERROR) throw CudaError(text, failure);
  if (status == MAGI_VTABLE_COMM_ERROR) {
    const bool is_known = failure >= static_cast<std::int32_t>(CommFailure::Timeout) &&
                          failure <= static_cast<std::int32_t>(CommFailure::System);
    throw CommError(text, is_known ? static_cast<CommFailure>(failure) : CommFailure::System);
  }
  throw InternalError(text);
}

}  // namespace magi::comm
