// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "magi/tensor.hpp"

// Element-wise work on device tensors, enqueued on a stream (a cudaStream_t), for elements.hpp.
namespace magi {

/// target = source, both of equal shape [a, b, c] or [a, b, c, d], with any strides; float32 and
/// float64 are rounded to the type of the target. Fast where the last axis has no gaps and rows of
/// it are aligned to 16 bytes, or where they are rounded to four elements.
void copy_device_elements(const TensorView& source, const TensorView& target, void* stream);

/// Every element of a tensor without gaps = the low bits of `bits`.
void fill_device_elements(const TensorView& target, std::uint64_t bits, void* stream);

/// Every element of a tensor [rows, heads] or [rows, heads, dim] with a contiguous last axis = 0.
void clear_device_elements(const TensorView& target, void* stream);

}  // namespace magi
