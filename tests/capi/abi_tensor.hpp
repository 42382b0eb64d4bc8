// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "magi/magi.h"
#include "magi/tensor.hpp"

namespace magi::test {

/// The C ABI's view of a tensor.
inline magi_tensor to_tensor(const TensorView& view) {
  magi_tensor tensor{.struct_size = sizeof(tensor),
                     .data = view.data,
                     .dtype = static_cast<std::int32_t>(view.dtype),
                     .device = view.device,
                     .rank = view.rank};
  std::copy(view.shape.begin(), view.shape.end(), tensor.shape);
  std::copy(view.stride.begin(), view.stride.end(), tensor.stride);
  return tensor;
}

}  // namespace magi::test
