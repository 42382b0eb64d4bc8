// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

// Stream-ordered device memory of the library. One pool per device serves the whole process, so
// that many plans hold their largest demand and not the sum of their demands; what is given back
// stays in the pool for the next call.
namespace magi {

/// Memory for work that `stream` is given later. Throws CudaError where none is left.
void* pool_allocate(std::size_t size_bytes, std::int32_t device, cudaStream_t stream);
/// Takes it back, for work that is enqueued later still.
void pool_release(void* data, cudaStream_t stream) noexcept;

}  // namespace magi
