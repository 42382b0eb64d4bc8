// SPDX-License-Identifier: Apache-2.0
#include "magi/tensor.hpp"

#include <string>

#include "base/check.hpp"

namespace magi {
namespace {

/// Above what any machine addresses, as in the C ABI.
constexpr std::int64_t kMostElements = std::int64_t{1} << 40;

void check_extent(std::size_t axis, std::int64_t extent, std::int64_t num_elements) {
  const auto name = [axis] { return "shape[" + std::to_string(axis) + "]"; };
  if (extent < 0 || extent > kMostElements) throw invalid(name(), extent, "0 to 2^40");
  if (extent > 0 && num_elements > kMostElements / extent) {
    throw invalid(name(), extent, "a shape of at most 2^40 elements");
  }
}

}  // namespace

std::size_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::Float64:
    case DType::Int64:
      return 8;
    case DType::Float32:
    case DType::Int32:
      return 4;
    case DType::Float16:
    case DType::BFloat16:
      return 2;
  }
  throw invalid("dtype", static_cast<std::int32_t>(dtype), "0 to 5");
}

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::Float64:
      return "float64";
    case DType::Float32:
      return "float32";
    case DType::Float16:
      return "float16";
    case DType::BFloat16:
      return "bfloat16";
    case DType::Int32:
      return "int32";
    case DType::Int64:
      return "int64";
  }
  throw invalid("dtype", static_cast<std::int32_t>(dtype), "0 to 5");
}

std::int64_t TensorView::num_elements() const {
  std::int64_t count = 1;
  for (std::int32_t axis = 0; axis < rank; ++axis) count *= shape[static_cast<std::size_t>(axis)];
  return count;
}

TensorView TensorView::slice(std::int32_t axis, std::int64_t begin, std::int64_t end) const {
  if (axis < 0 || axis >= rank) throw invalid("axis", axis, "0 to rank - 1 of the tensor");
  const auto a = static_cast<std::size_t>(axis);
  if (begin < 0 || begin > end || end > shape[a]) {
    throw invalid("slice", std::to_string(begin) + ":" + std::to_string(end),
                  "0 <= begin <= end <= " + std::to_string(shape[a]));
  }
  TensorView view = *this;
  view.shape[a] = end - begin;
  if (view.data != nullptr) {
    view.data = static_cast<std::byte*>(view.data) +
                begin * stride[a] * static_cast<std::int64_t>(dtype_bytes(dtype));
  }
  return view;
}

TensorView contiguous_view(void* data, DType dtype, std::initializer_list<std::int64_t> shape,
                           std::int32_t device) {
  if (shape.size() > static_cast<std::size_t>(kMaxTensorRank)) {
    throw invalid("rank", shape.size(), "0 to 4");
  }
  TensorView view{.data = data,
                  .dtype = dtype,
                  .device = device,
                  .rank = static_cast<std::int32_t>(shape.size())};
  std::size_t axis = 0;
  for (const std::int64_t extent : shape) view.shape[axis++] = extent;
  std::int64_t stride = 1;
  while (axis-- > 0) {
    check_extent(axis, view.shape[axis], stride);
    view.stride[axis] = stride;
    stride *= view.shape[axis];
  }
  return view;
}

}  // namespace magi
