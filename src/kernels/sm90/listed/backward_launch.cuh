// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "cuda/check.hpp"
#include "cuda/ptx/wgmma_n128.cuh"
#include "cuda/ptx/wgmma_n64.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/listed/backward_kernel.cuh"
#include "kernels/sm90/listed/launch.hpp"

namespace magi::sm90 {

/// The config for 128 query heads, or for up to 64 with two CTAs per multiprocessor.
template <DType kType, int kDim, int kConsumers, bool kHasParts, bool kIsJoined>
struct ListedBackwardInstanceOf {
  static constexpr ListedConfig kConfig{.type = kType,
                                        .dim = kDim,
                                        .keys = 64,
                                        .consumers = kConsumers,
                                        .stages = kConsumers == 2 ? 3 : 2,
                                        .q_stages = 1,
                                        .ctas_per_sm = kConsumers == 2 ? 1 : 2,
                                        .producer_registers = kConsumers == 2 ? 56 : 40,
                                        .is_joined = kIsJoined,
                                        .has_parts = kHasParts};
};

template <typename Instance>
void launch_listed_backward(const ListedBackwardParams& params, int num_ctas, cudaStream_t stream) {
  constexpr ListedConfig kC = Instance::kConfig;
  const int bytes = grant_storage<ListedBackwardStorage<kC>, listed_backward_kernel<Instance>>();
  listed_backward_kernel<Instance><<<num_ctas, kC.threads(), bytes, stream>>>(params);
  cuda_check(cudaGetLastError(), "listed_backward_kernel");
}

template <DType kType, int kDim, int kConsumers, bool kHasParts, bool kIsJoined = false>
constexpr ListedBackwardInstance listed_backward_instance() {
  using Instance = ListedBackwardInstanceOf<kType, kDim, kConsumers, kHasParts, kIsJoined>;
  static_assert(sizeof(ListedBackwardStorage<Instance::kConfig>) <=
                (228 / Instance::kConfig.ctas_per_sm - 1) * 1024);
  return {Instance::kConfig, launch_listed_backward<Instance>};
}

template <DType kType, bool kHasParts>
constexpr std::array<ListedBackwardInstance, 4> listed_backward_instances_of() {
  return {listed_backward_instance<kType, 64, 1, kHasParts>(),
          listed_backward_instance<kType, 128, 1, kHasParts>(),
          listed_backward_instance<kType, 64, 2, kHasParts>(),
          listed_backward_instance<kType, 128, 2, kHasParts>()};
}

}  // namespace magi::sm90
