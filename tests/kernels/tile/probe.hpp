// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "magi/tensor.hpp"

namespace magi::probe {

// Shapes: n and dim in {64, 128}, or n = 80 and dim = 256.

/// d[64, n] = a[64, dim] b[n, dim]^T through shared memory, float32 out; a, b and d are contiguous
/// device tensors, a and b as [rows, 1, dim].
void multiply_abt(const TensorView& a, const TensorView& b, float* d, cudaStream_t stream);

/// d[64, dim] = p[64, n] v[n, dim], p rounded to 16 bits in registers from float32.
void multiply_pv(const float* p, const TensorView& v, float* d, cudaStream_t stream);

/// out[64, dim] = in[64, dim] through accumulator fragments, stmatrix and a bulk store.
void store_through_shared(const float* in, const TensorView& out, cudaStream_t stream);

/// keep[row, column] = whether a 64 x columns tile's element survives the mask [low, high) of its
/// row.
void mask_tile(const int* low, const int* high, int columns, int* keep, cudaStream_t stream);

}  // namespace magi::probe
