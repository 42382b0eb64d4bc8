// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/check.hpp"
#include "cuda/ptx/wgmma_n128.cuh"
#include "cuda/ptx/wgmma_n64.cuh"
#include "cuda/shared_memory.hpp"
#include "kernels/sm90/forward/kernel.cuh"
#include "kernels/sm90/forward/launch.hpp"

namespace magi::sm90 {

template <typename Instance>
void launch_forward(const ForwardParams& params, int num_ctas, cudaStream_t stream) {
  constexpr ForwardConfig kC = Instance::kConfig;
  constexpr int kBytes = static_cast<int>(sizeof(SharedStorage<kC>));
  static_assert(kBytes <= 227 * 1024);
  const auto kernel = forward_kernel<Instance>;
  static SharedMemoryGrant grant;
  grant.ensure(kernel, kBytes);
  kernel<<<num_ctas, kC.threads(), kBytes, stream>>>(params);
  cuda_check(cudaGetLastError(), "forward_kernel");
}

template <typename Instance>
constexpr ForwardInstance forward_instance() {
  return {Instance::kConfig, launch_forward<Instance>};
}

}  // namespace magi::sm90
