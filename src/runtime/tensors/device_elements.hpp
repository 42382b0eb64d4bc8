// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "magi/tensor.hpp"

// Element-wise work on device tensors, enqueued on a stream.
namespace magi {

/// target = source (float32 or float64), rounded to the type of the target; both [rows, heads,
/// dim], dim contiguous. Four elements of float32 go at once where dim is a multiple of 4 and rows
/// and heads are aligned to as many.
void convert_device_rows(const TensorView& source, const TensorView& target, cudaStream_t stream);

/// target = source: tensors [a, b, c, d] of one type and of equal shape, with any strides. Fast
/// where the last axis has no gaps and rows of it are aligned to 16 bytes.
void copy_device_values(const TensorView& source, const TensorView& target, cudaStream_t stream);

/// Every element of a tensor without gaps = the low bits of `bits`.
void fill_device_bits(const TensorView& target, std::uint64_t bits, cudaStream_t stream);

/// Every element of a tensor [rows], [rows, heads] or [rows, heads, dim] with a contiguous last
/// axis = 0.
void clear_device_values(const TensorView& target, cudaStream_t stream);

}  // namespace magi
