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

/// values[0, count) = value.
void fill_device_floats(float* values, std::int64_t count, float value, cudaStream_t stream);
/// `copies` copies of values[0, count), one after the other.
void repeat_device_floats(const float* values, std::int64_t count, std::int32_t copies,
                          float* target, cudaStream_t stream);
/// values[i] = the largest of rows[r * count + i].
void max_device_floats(const float* rows, std::int32_t num_rows, std::int64_t count, float* values,
                       cudaStream_t stream);

}  // namespace magi
