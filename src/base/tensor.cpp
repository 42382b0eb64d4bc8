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

struct ElementType {
  const char* name;
  std::size_t bytes;
};
/// By the number of the DType.
constexpr ElementType kTypes[] = {{"float64", 8},  {"float32", 4}, {"float16", 2},
                                  {"bfloat16", 2}, {"int32", 4},   {"int64", 8}};

const ElementType& type_of(DType dtype) {
  const auto number = static_cast<std::int32_t>(dtype);
  if (number < 0 || number > 5) throw invalid("dtype", number, "0 to 5");
  return kTypes[number];
}

}  // namespace

std::size_t dtype_bytes(DType dtype) { return type_of(dtype).bytes; }
const char* dtype_name(DType dtype) { return type_of(dtype).name; }

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
