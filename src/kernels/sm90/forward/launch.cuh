// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/launch.cuh"
#include "cuda/ptx/wgmma_n128.cuh"
#include "cuda/ptx/wgmma_n256.cuh"
#include "cuda/ptx/wgmma_n64.cuh"
#include "cuda/ptx/wgmma_n80.cuh"
#include "kernels/sm90/forward/kernel.cuh"
#include "kernels/sm90/forward/launch.hpp"
#include "kernels/sm90/launch.cuh"

namespace magi::sm90 {

template <typename Instance>
void launch_forward(const ForwardParams& params, int num_ctas, cudaStream_t stream) {
  constexpr ForwardConfig kC = Instance::kConfig;
  const int bytes = grant_storage<SharedStorage<kC>, forward_kernel<Instance>>();
  launch_ahead(forward_kernel<Instance>, num_ctas, kC.threads(), bytes, params, stream);
}

template <typename Instance>
constexpr ForwardInstance forward_instance() {
  return {Instance::kConfig, launch_forward<Instance>};
}

}  // namespace magi::sm90
