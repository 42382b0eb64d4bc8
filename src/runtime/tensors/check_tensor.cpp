// SPDX-License-Identifier: Apache-2.0
#include "runtime/tensors/check_tensor.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace magi {
namespace {

std::span<const std::int64_t> shape_of(const TensorView& tensor) {
  return std::span(tensor.shape).first(static_cast<std::size_t>(tensor.rank));
}

void check_dtype(const TensorView& tensor, const TensorRule& rule) {
  if (std::find(rule.dtypes.begin(), rule.dtypes.end(), tensor.dtype) != rule.dtypes.end()) return;
  std::string allowed;
  for (const DType dtype : rule.dtypes) {
    if (!allowed.empty()) allowed += ", ";
    allowed += dtype_name(dtype);
  }
  throw invalid(std::string(rule.name) + ".dtype", dtype_name(tensor.dtype), allowed);
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
    throw invalid(argument + ".device", tensor.device,
                  device == kCpuDevice ? "-1 (host memory)"
                                       : std::to_string(device) + " (that of the first tensor)");
  }
  if (tensor.data == nullptr && tensor.num_elements() > 0) {
    throw invalid(argument + ".data", "null", "the address of its elements");
  }
}

void check_tensor(const TensorView& tensor, const TensorRule& rule, std::int32_t device) {
  check_tensor_on(device, rule.name, tensor);
  const std::span<const std::int64_t> expected(rule.shape.begin(), rule.shape.size());
  if (!std::ranges::equal(shape_of(tensor), expected)) {
    throw invalid(std::string(rule.name) + ".shape", shape_text(shape_of(tensor)),
                  shape_text(expected));
  }
  check_dtype(tensor, rule);
  if (!rule.is_last_axis_contiguous) return;
  const auto last = static_cast<std::size_t>(tensor.rank - 1);
  if (tensor.shape[last] > 1 && tensor.stride[last] != 1) {
    throw invalid(std::string(rule.name) + ".stride of the last axis", tensor.stride[last], "1");
  }
}

}  // namespace magi
