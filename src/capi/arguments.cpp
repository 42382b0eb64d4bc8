// SPDX-License-Identifier: Apache-2.0
#include "capi/arguments.hpp"

#include <cstdlib>

namespace magi::capi {

namespace {

/// Above what any machine addresses; offsets and numbers of elements within it fit in 64 bits.
constexpr std::int64_t kMostElements = std::int64_t{1} << 40;

/// An extent and stride of one axis, and the elements of the axes so far.
void check_axis(const char* argument, const magi_tensor& given, std::size_t axis,
                std::int64_t& num_elements) {
  const std::int64_t extent = given.shape[axis], stride = given.stride[axis];
  const auto name_of = [&](const char* field) {
    return std::string(argument) + "." + field + "[" + std::to_string(axis) + "]";
  };
  if (extent < 0 || extent > kMostElements) throw invalid(name_of("shape"), extent, "0 to 2^40");
  if (stride < -kMostElements || stride > kMostElements) {
    throw invalid(name_of("stride"), stride, "-2^40 to 2^40");
  }
  if (extent > 1 && std::abs(stride) > kMostElements / (extent - 1)) {
    throw invalid(name_of("stride"), stride,
                  "so large that the last of " + std::to_string(extent) +
                      " elements is within 2^40 of the first");
  }
  if (extent > 0 && num_elements > kMostElements / extent) {
    throw invalid(name_of("shape"), extent, "a shape of at most 2^40 elements");
  }
  num_elements *= extent;
}

}  // namespace

TensorView read_tensor(const magi_tensor* tensor, const char* name) {
  const magi_tensor given = read_struct(tensor, name);
  const auto field = [name](const char* text) { return std::string(name) + text; };
  if (given.dtype < MAGI_FLOAT64 || given.dtype > MAGI_INT64) {
    throw invalid(field(".dtype"), given.dtype, "0 to 5");
  }
  if (given.rank < 1 || given.rank > kMaxTensorRank) {
    throw invalid(field(".rank"), given.rank, "1 to 4");
  }
  if (given.device < kCpuDevice) {
    throw invalid(field(".device"), given.device, "-1 (host memory) or a CUDA ordinal");
  }
  TensorView view{.data = given.data,
                  .dtype = static_cast<DType>(given.dtype),
                  .device = given.device,
                  .rank = given.rank};
  std::int64_t num_elements = 1;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(given.rank); ++axis) {
    check_axis(name, given, axis, num_elements);
    view.shape[axis] = given.shape[axis];
    view.stride[axis] = given.stride[axis];
  }
  return view;
}

TensorView read_optional_tensor(const magi_tensor* tensor, const char* name) {
  return tensor == nullptr ? TensorView{} : read_tensor(tensor, name);
}

}  // namespace magi::capi
