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

/// Throws InvalidArgument unless `tensor` has rank 1 to 4, no negative extent and, unless it has no
/// elements, data on `device`.
void check_tensor_on(std::int32_t device, const char* name, const TensorView& tensor);

/// The parts of check_tensor that need no data.
void check_rank(const char* name, const TensorView& tensor, std::int32_t rank);
void check_shape(const char* name, const TensorView& tensor, std::span<const std::int64_t> shape);
void check_dtype(const char* name, const TensorView& tensor, std::span<const DType> allowed);

/// "[8, 2, 64]"
std::string shape_text(std::span<const std::int64_t> shape);

/// The type of lse, of sinks and of sums for inputs of type `type`.
inline DType accumulator_type(DType type) {
  return type == DType::Float64 ? DType::Float64 : DType::Float32;
}

}  // namespace magi
