// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "cuda/check.hpp"
#include "cuda/device.hpp"

namespace magi {

/// Launches a kernel that may begin before the one before it on the stream has ended, so that its
/// start is not waited for. All its threads call ptx::await_kernels_before() before they touch
/// memory that others read or write, and in every case: the kernel after it waits for it alone. So
/// no kernel of a chain ends before those in front of it, and an ordinary one behind the chain is
/// behind all of it. Some know better when they may read, but do not end before they have waited:
/// - the kernel after one that pushes rows to peers, which touches nothing of the push, calls it at
///   its end alone: flags tell what it may read;
/// - that after the making of a list calls it in some of its CTAs, which use the list;
/// - that which makes dq calls it in its last CTA, where semaphores tell which sums it may read.
///
/// Code for GPUs other than Hopper has no such call: there a launch is an ordinary one.
template <typename Params>
void launch_ahead(void (*kernel)(Params), dim3 num_ctas, unsigned num_threads,
                  std::size_t shared_bytes, const Params& params, cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = num_ctas;
  config.blockDim = num_threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = device_info(current_device()).is_hopper() ? 1 : 0;
  cuda_check(cudaLaunchKernelEx(&config, kernel, params), "cudaLaunchKernelEx");
}

}  // namespace magi
