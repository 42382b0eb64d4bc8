// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Marks a function that host code and kernels share, inlined in both.
#ifdef __CUDACC__
#define MAGI_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define MAGI_HOST_DEVICE inline
#endif
