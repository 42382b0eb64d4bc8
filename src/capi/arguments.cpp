// SPDX-License-Identifier: Apache-2.0
#include "capi/arguments.hpp"

namespace magi::capi {

TensorView read_tensor(const magi_tensor* tensor, const char* name) {
  const magi_tensor given = read_struct(tensor, name);
  const std::string argument = name;
  if (given.dtype < MAGI_FLOAT64 || given.dtype > MAGI_INT64) {
    throw invalid(argument + ".dtype", given.dtype, "0 to 5");
  }
  if (given.rank < 1 || given.rank > kMaxTensorRank) {
    throw invalid(argument + ".rank", given.rank, "1 to 4");
  }
  if (given.device < kCpuDevice) {
    throw invalid(argument + ".device", given.device, "-1 (host memory) or a CUDA ordinal");
  }
  TensorView view{.data = given.data,
                  .dtype = static_cast<DType>(given.dtype),
                  .device = given.device,
                  .rank = given.rank};
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(given.rank); ++axis) {
    view.shape[axis] = given.shape[axis];
    view.stride[axis] = given.stride[axis];
  }
  return view;
}

TensorView read_optional_tensor(const magi_tensor* tensor, const char* name) {
  return tensor == nullptr ? TensorView{} : read_tensor(tensor, name);
}

}  // namespace magi::capi
