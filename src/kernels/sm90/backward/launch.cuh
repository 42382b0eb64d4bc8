// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/launch.cuh"
#include "cuda/ptx/wgmma_n128.cuh"
#include "cuda/ptx/wgmma_n192.cuh"
#include "cuda/ptx/wgmma_n32.cuh"
#include "cuda/ptx/wgmma_n64.cuh"
#include "kernels/sm90/backward/dq_convert_kernel.cuh"
#include "kernels/sm90/backward/kernel.cuh"
#include "kernels/sm90/backward/launch.hpp"
#include "kernels/sm90/launch.cuh"

namespace magi::sm90 {

template <typename Instance, bool kIsOrdered>
constexpr auto main_kernel() {
  if constexpr (Instance::kConfig.ctas() == 1) {
    return backward_kernel<Instance, kIsOrdered>;
  } else {
    return backward_pair_kernel<Instance, kIsOrdered>;
  }
}

template <typename Instance, bool kIsOrdered>
void launch_backward_kernel(const BackwardParams& params, int num_ctas, LaunchStart start,
                            cudaStream_t stream) {
  constexpr BackwardConfig kC = Instance::kConfig.ordered(kIsOrdered);
  constexpr auto kKernel = main_kernel<Instance, kIsOrdered>();
  const int bytes = grant_storage<BackwardStorage<kC>, kKernel>();
  switch (start) {
    case LaunchStart::Ahead:
      return launch_ahead(kKernel, num_ctas, kC.threads(), bytes, params, stream);
    case LaunchStart::Behind:
      kKernel<<<num_ctas, kC.threads(), bytes, stream>>>(params);
      cuda_check(cudaGetLastError(), "backward_kernel");
  }
}

template <typename Instance>
void launch_backward(const BackwardParams& params, int num_ctas, LaunchStart start,
                     cudaStream_t stream) {
  const auto launch = params.dq_order.is_ordered ? launch_backward_kernel<Instance, true>
                                                 : launch_backward_kernel<Instance, false>;
  launch(params, num_ctas, start, stream);
}

template <typename Instance>
void launch_dq_convert(const BackwardParams& params, cudaStream_t stream) {
  constexpr BackwardConfig kC = Instance::kConfig;
  const int head_groups = params.query.heads_q / params.query.packed_heads;
  constexpr int kParts = kC.rows / 64;
  const std::int32_t num_tiles =
      params.dq_order.is_converting ? params.dq.num_left : params.query.num_q_tiles;
  if (num_tiles == 0) return;
  const unsigned num_ctas = static_cast<unsigned>(num_tiles) * kParts * head_groups;
  launch_ahead(dq_convert_kernel<kC.type, kC.dim_qk, kParts>, num_ctas, kConvertThreads, 0, params,
               stream);
}

template <typename Instance>
constexpr BackwardInstance backward_instance() {
  return {Instance::kConfig, launch_backward<Instance>, launch_dq_convert<Instance>};
}

}  // namespace magi::sm90
