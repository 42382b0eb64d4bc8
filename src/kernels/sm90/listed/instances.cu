// SPDX-License-Identifier: Apache-2.0
#include "cuda/check.hpp"
#include "cuda/ptx/wgmma_n128.cuh"
#include "cuda/ptx/wgmma_n64.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/listed/kernel.cuh"
#include "kernels/sm90/listed/launch.hpp"

namespace magi::sm90 {

/// The config for 128 query heads per tile. At head dim 128 a third stage gains more than a second
/// Q, whose copy the end of an item hides.
template <DType kType, int kDim>
struct ManyHeadsInstance {
  static constexpr ListedConfig kConfig{
      .type = kType, .dim = kDim, .stages = kDim == 64 ? 4 : 3, .q_stages = kDim == 64 ? 2 : 1};
};

/// The config for 64 query heads per tile, or fewer and rows of zeros. Gathering keys bounds the
/// rate, so two CTAs share a multiprocessor.
template <DType kType, int kDim, bool kIsGeneral, bool kIsJoined = false>
struct FewHeadsInstance {
  static constexpr ListedConfig kConfig{.type = kType,
                                        .dim = kDim,
                                        .keys = 64,
                                        .consumers = 1,
                                        .stages = kDim == 64 ? 5 : 3,
                                        .q_stages = kDim == 64 ? 2 : 1,
                                        .ctas_per_sm = 2,
                                        .is_general = kIsGeneral,
                                        .is_joined = kIsJoined};
};

namespace {

template <typename Instance>
void launch_listed(const ListedForwardParams& params, int num_ctas, cudaStream_t stream) {
  constexpr ListedConfig kC = Instance::kConfig;
  const int bytes = grant_storage<ListedStorage<kC>, listed_forward_kernel<Instance>>();
  listed_forward_kernel<Instance><<<num_ctas, kC.threads(), bytes, stream>>>(params);
  cuda_check(cudaGetLastError(), "listed_forward_kernel");
}

template <typename Instance>
constexpr ListedInstance listed_instance() {
  static_assert(sizeof(ListedStorage<Instance::kConfig>) <=
                (228 / Instance::kConfig.ctas_per_sm - 1) * 1024);
  return {Instance::kConfig, launch_listed<Instance>};
}

constexpr DType kBf16 = DType::BFloat16;
constexpr DType kFp16 = DType::Float16;

constexpr ListedInstance kInstances[] = {
    listed_instance<ManyHeadsInstance<kBf16, 64>>(),
    listed_instance<ManyHeadsInstance<kBf16, 128>>(),
    listed_instance<ManyHeadsInstance<kFp16, 64>>(),
    listed_instance<ManyHeadsInstance<kFp16, 128>>(),
    listed_instance<FewHeadsInstance<kBf16, 64, false>>(),
    listed_instance<FewHeadsInstance<kBf16, 128, false>>(),
    listed_instance<FewHeadsInstance<kFp16, 64, false>>(),
    listed_instance<FewHeadsInstance<kFp16, 128, false>>(),
    listed_instance<FewHeadsInstance<kBf16, 64, true>>(),
    listed_instance<FewHeadsInstance<kBf16, 128, true>>(),
    listed_instance<FewHeadsInstance<kFp16, 64, true>>(),
    listed_instance<FewHeadsInstance<kFp16, 128, true>>(),
    listed_instance<FewHeadsInstance<kBf16, 64, false, true>>(),
    listed_instance<FewHeadsInstance<kBf16, 128, false, true>>(),
    listed_instance<FewHeadsInstance<kFp16, 64, false, true>>(),
    listed_instance<FewHeadsInstance<kFp16, 128, false, true>>(),
};

}  // namespace

const ListedInstance* find_listed_instance(const ListedWish& wish) {
  for (const ListedInstance& instance : kInstances) {
    const ListedConfig& config = instance.config;
    const bool is_wide = wish.heads > 64 && !wish.is_general;
    if (config.type == wish.type && config.dim >= wish.dim &&
        config.is_general == wish.is_general && config.is_joined == wish.is_joined &&
        (config.consumers == 2) == is_wide) {
      return &instance;
    }
  }
  return nullptr;
}

}  // namespace magi::sm90
