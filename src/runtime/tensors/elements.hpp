// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "magi/tensor.hpp"

// Element-wise work on strided tensors of equal shape, in host memory or enqueued on `stream` (a
// cudaStream_t), which device_elements.hpp bounds further.
namespace magi {

/// target = source. Types that differ are floating-point: rounds to nearest even.
void copy_elements(const TensorView& source, const TensorView& target, void* stream = nullptr);
/// Every element = value, rounded to the element type; on a GPU of a tensor without gaps.
void fill_elements(const TensorView& target, double value, void* stream = nullptr);
/// Every element of a tensor [rows, heads] or [rows, heads, dim] = 0.
void clear_elements(const TensorView& target, void* stream = nullptr);

}  // namespace magi
