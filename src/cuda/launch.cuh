// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "cuda/check.hpp"

namespace magi {

/// Launches a kernel that may begin before the ones before it on the stream have ended: it calls
/// ptx::await_kernels_before() before it reads what they wrote. So its start is not waited for.
template <typename Params>
void launch_ahead(void (*kernel)(Params), unsigned num_ctas, unsigned num_threads,
                  std::size_t shared_bytes, cudaStream_t stream, const Params& params) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = num_ctas;
  config.blockDim = num_threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  cuda_check(cudaLaunchKernelEx(&config, kernel, params), "cudaLaunchKernelEx");
}

}  // namespace magi
