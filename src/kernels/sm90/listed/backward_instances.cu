// SPDX-License-Identifier: Apache-2.0
#include "cuda/check.hpp"
#include "cuda/ptx/wgmma_n128.cuh"
#include "cuda/ptx/wgmma_n64.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/listed/backward_kernel.cuh"
#include "kernels/sm90/listed/launch.hpp"

namespace magi::sm90 {

/// Of 128 query heads, or of up to 64, where two CTAs share a multiprocessor.
template <DType kType, int kDim, int kConsumers>
struct ListedBackwardInstanceOf {
  static constexpr ListedConfig kConfig{.type = kType,
                                        .dim = kDim,
                                        .keys = 64,
                                        .consumers = kConsumers,
                                        .stages = kConsumers == 2 ? 3 : 2,
                                        .q_stages = 1,
                                        .ctas_per_sm = kConsumers == 2 ? 1 : 2,
                                        .producer_registers = kConsumers == 2 ? 56 : 40};
};

namespace {

template <typename Instance>
void launch_listed_backward(const ListedBackwardParams& params, int num_ctas, cudaStream_t stream) {
  constexpr ListedConfig kC = Instance::kConfig;
  const int bytes = grant_storage<ListedBackwardStorage<kC>, listed_backward_kernel<Instance>>();
  listed_backward_kernel<Instance><<<num_ctas, kC.threads(), bytes, stream>>>(params);
  cuda_check(cudaGetLastError(), "listed_backward_kernel");
}

template <DType kType, int kDim, int kConsumers>
constexpr ListedBackwardInstance listed_backward_instance() {
  using Instance = ListedBackwardInstanceOf<kType, kDim, kConsumers>;
  static_assert(sizeof(ListedBackwardStorage<Instance::kConfig>) <=
                (228 / Instance::kConfig.ctas_per_sm - 1) * 1024);
  return {Instance::kConfig, launch_listed_backward<Instance>};
}

constexpr DType kBf16 = DType::BFloat16;
constexpr DType kFp16 = DType::Float16;

constexpr ListedBackwardInstance kInstances[] = {
    listed_backward_instance<kBf16, 64, 1>(), listed_backward_instance<kBf16, 128, 1>(),
    listed_backward_instance<kBf16, 64, 2>(), listed_backward_instance<kBf16, 128, 2>(),
    listed_backward_instance<kFp16, 64, 1>(), listed_backward_instance<kFp16, 128, 1>(),
    listed_backward_instance<kFp16, 64, 2>(), listed_backward_instance<kFp16, 128, 2>(),
};

}  // namespace

const ListedBackwardInstance* find_listed_backward_instance(DType type, int dim, int heads) {
  for (const ListedBackwardInstance& instance : kInstances) {
    const ListedConfig& config = instance.config;
    if (config.type == type && config.dim >= dim && (config.consumers == 2) == (heads > 64)) {
      return &instance;
    }
  }
  return nullptr;
}

}  // namespace magi::sm90
