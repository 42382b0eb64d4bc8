// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "comm/packed_exchanger.hpp"

// Rows of strided device tensors and of the wire, whose row is the concatenation of the tensors'
// rows. Task lists are in device memory, too. Nothing waits.
namespace magi::comm {

/// Local rows -> wire rows, the other way where `from` is the wire. Strides and data of the tensors
/// suit one unit of 2 to 16 bytes, the larger the faster. Throws InvalidArgument for a tensor with
/// more than one strided axis beyond its rows.
void copy_rows(const RowSide& from, const RowSide& to, std::span<const RowTask> tasks,
               cudaStream_t stream);

/// Combines partial rows in the order of the parts, in float64 for float64 tensors, else in
/// float32; 16-bit tensors are rounded once. The lse of a merge is float32 (float64 beside a
/// float64 out), also on the wire.
void combine_rows(const Partials& partials, cudaStream_t stream);

/// values[i] = the largest of rows[r, i], float32 without gaps.
void max_rows(const TensorView& rows, const TensorView& values, cudaStream_t stream);

}  // namespace magi::comm
