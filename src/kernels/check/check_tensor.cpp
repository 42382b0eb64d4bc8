// SPDX-License-Identifier: Apache-2.0
#include "kernels/check/check_tensor.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace magi {
namespace {

std::span<const std::int64_t> shape_of(const TensorView& tensor) {
  return std::span(tensor.shape).first(static_cast<std::size_t>(tensor.rank));
}

}  // namespace

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(extent);
  }
  return text + "]";
}

void check_rank(const char* name, const TensorView& tensor, std::int32_t rank) {
  if (tensor.rank == rank) return;
  throw invalid(std::string(name) + ".rank", tensor.rank, std::to_string(rank));
}

void check_shape(const char* name, const TensorView& tensor, std::span<const std::int64_t> shape) {
  if (std::ranges::equal(shape_of(tensor), shape)) return;
  throw invalid(std::string(name) + ".shape", shape_text(shape_of(tensor)), shape_text(shape));
}

void check_dtype(const char* name, const TensorView& tensor, std::span<const DType> allowed) {
  if (std::ranges::find(allowed, tensor.dtype) != allowed.end()) return;
  std::string text;
  for (std::size_t i = 0; i < allowed.size(); ++i) {
    if (i > 0 && allowed[i] == allowed[0]) continue;
    text += (text.empty() ? "" : ", ") + std::string(dtype_name(allowed[i]));
  }
  throw invalid(std::string(name) + ".dtype", dtype_name(tensor.dtype), text);
}

void check_tensor_on(std::int32_t device, const char* name, const TensorView& tensor) {
  const std::string argument = name;
  if (tensor.rank < 1 || tensor.rank > kMaxTensorRank) {
    throw invalid(argument + ".rank", tensor.rank, "1 to 4");
  }
  for (const std::int64_t extent : shape_of(tensor)) {
    if (extent < 0) {
      throw invalid(argument + ".shape", shape_text(shape_of(tensor)), "extents of 0 or more");
    }
  }
  if (tensor.device != device) {
    throw invalid(
        argument + ".device", tensor.device,
        device == kCpuDevice ? "-1 (host memory)" : std::to_string(device) + " (that of the call)");
  }
  if (tensor.data == nullptr && tensor.num_elements() > 0) {
    throw invalid(argument + ".data", "null", "the address of its elements");
  }
}

void check_tensor(const TensorView& tensor, const TensorRule& rule, std::int32_t device) {
  check_tensor_on(device, rule.name, tensor);
  check_shape(rule.name, tensor, {rule.shape.begin(), rule.shape.size()});
  check_dtype(rule.name, tensor, {rule.dtypes.begin(), rule.dtypes.size()});
  if (!rule.is_last_axis_contiguous) return;
  const auto last = static_cast<std::size_t>(tensor.rank - 1);
  if (tensor.shape[last] > 1 && tensor.stride[last] != 1) {
    throw invalid(std::string(rule.name) + ".stride[" + std::to_string(last) + "]",
                  tensor.stride[last], "1");
  }
}

}  // namespace magi
