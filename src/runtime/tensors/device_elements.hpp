// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "magi/tensor.hpp"

// Element-wise work on device tensors, enqueued on a stream (a cudaStream_t), for elements.hpp.
namespace magi {

/// target = source, both of one type and of equal shape [a, b, c, d], with any strides. Fast where
/// the last axis has no gaps and rows of it are aligned to 16 bytes.
void copy_device_elements(const TensorView& source, const TensorView& target, void* stream);

/// target = source (float32 or float64), rounded to the type of the target; both [rows, heads,
/// dim], dim contiguous. Four elements of float32 go at once where dim is a multiple of 4 and rows
/// and heads are aligned to as many.
void convert_device_elements(const TensorView& source, const TensorView& target, void* stream);

/// Every element of a tensor without gaps = the low bits of `bits`.
void fill_device_elements(const TensorView& target, std::uint64_t bits, void* stream);

/// Every element of a tensor [rows, heads] or [rows, heads, dim] with a contiguous last axis = 0.
void clear_device_elements(const TensorView& target, void* stream);

}  // namespace magi
