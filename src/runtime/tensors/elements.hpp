// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "magi/tensor.hpp"

// Element-wise work on strided host tensors of equal shape.
namespace magi {

bool is_floating(DType dtype);

/// target = source, same data type.
void copy_elements(const TensorView& source, const TensorView& target);
/// target = source, floating-point types; rounds to nearest even.
void convert_elements(const TensorView& source, const TensorView& target);
/// Every element = value, rounded to the element type.
void fill_elements(const TensorView& target, double value);

}  // namespace magi
