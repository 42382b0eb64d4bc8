// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <span>
#include <string>

#include "magi/tensor.hpp"

namespace magi {

/// The form that a tensor argument must have; `name` is the argument's.
struct TensorRule {
  const char* name;
  std::initializer_list<std::int64_t> shape;
  std::initializer_list<DType> dtypes;
  bool is_last_axis_contiguous = true;
};

/// Throws InvalidArgument unless `tensor` has this shape, one of the types, its data on `device`
/// and, where asked for, a contiguous last axis.
void check_tensor(const TensorView& tensor, const TensorRule& rule,
                  std::int32_t device = kCpuDevice);

/// Rank 1 to 4, no negative extent, on `device`, with data unless it has no elements.
void check_tensor_on(std::int32_t device, const char* name, const TensorView& tensor);

/// "[8, 2, 64]"
std::string shape_text(std::span<const std::int64_t> shape);

}  // namespace magi
