// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/launch.cuh"
#include "cuda/ptx/wgmma_n128.cuh"
#include "cuda/ptx/wgmma_n64.cuh"
#include "cuda/shared_memory.hpp"
#include "kernels/sm90/backward/finish.cuh"
#include "kernels/sm90/backward/kernel.cuh"
#include "kernels/sm90/backward/launch.hpp"

namespace magi::sm90 {

template <typename Instance, bool kIsOrdered>
void launch_ordered(const BackwardParams& params, int num_ctas, cudaStream_t stream) {
  constexpr BackwardConfig kC = Instance::kConfig.ordered(kIsOrdered);
  constexpr int kBytes = static_cast<int>(sizeof(BackwardStorage<kC>));
  static_assert(kBytes <= 227 * 1024);
  const auto kernel = backward_kernel<Instance, kIsOrdered>;
  static SharedMemoryGrant grant;
  grant.ensure(kernel, kBytes);
  launch_ahead(kernel, num_ctas, kC.threads(), kBytes, params, stream);
}

template <typename Instance>
void launch_backward(const BackwardParams& params, int num_ctas, cudaStream_t stream) {
  const auto launch =
      params.is_ordered ? launch_ordered<Instance, true> : launch_ordered<Instance, false>;
  launch(params, num_ctas, stream);
}

template <typename Instance>
void launch_finish(const BackwardParams& params, cudaStream_t stream) {
  constexpr BackwardConfig kC = Instance::kConfig;
  const int head_groups = params.heads_q / params.packed_heads;
  constexpr int kParts = kC.rows / 64;
  const std::int32_t num_tiles = params.is_finishing ? params.num_left : params.num_q_tiles;
  if (num_tiles == 0) return;
  const unsigned num_ctas = static_cast<unsigned>(num_tiles) * kParts * head_groups;
  launch_ahead(finish_kernel<kC.type, kC.dim_qk, kParts>, num_ctas, kFinishThreads, 0, params,
               stream);
}

template <typename Instance>
constexpr BackwardInstance backward_instance() {
  return {Instance::kConfig, launch_backward<Instance>, launch_finish<Instance>};
}

}  // namespace magi::sm90
