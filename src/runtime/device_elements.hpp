// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "magi/tensor.hpp"

// Element-wise work on device tensors, enqueued on a stream.
namespace magi {

/// target = source (float32), rounded to float16 or bfloat16 where the target is one; both [rows,
/// heads, dim], dim contiguous and a multiple of 4, rows and heads aligned to 16 bytes.
void convert_device_rows(const TensorView& source, const TensorView& target, cudaStream_t stream);

/// target (float16, bfloat16) = source (float32), both without gaps and of the same size.
void round_device_floats(const TensorView& source, const TensorView& target, cudaStream_t stream);
/// Every element of a tensor without gaps = the low bits of `bits`.
void fill_device_bits(const TensorView& target, std::uint64_t bits, cudaStream_t stream);

/// Every element of a tensor [rows], [rows, heads] or [rows, heads, dim] with a contiguous last
/// axis = 0.
void clear_device_values(const TensorView& target, cudaStream_t stream);

}  // namespace magi
