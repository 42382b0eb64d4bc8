// SPDX-License-Identifier: Apache-2.0
#include "cuda/check.hpp"
#include "kernels/mma/backward/kernel.cuh"
#include "kernels/mma/launch.hpp"
#include "kernels/sm90/backward/dq_convert_kernel.cuh"
#include "kernels/sm90/launch.cuh"

namespace magi::mma {

/// Head dims up to 128 take less than 99 KiB, which is what GPUs of compute capability 8.6, 8.9 and
/// 12.0 have, and leave room for two CTAs on others. Larger ones have eight warps.
template <DType kType, int kDimQk, int kDimV>
struct Instance {
  static constexpr BackwardConfig kConfig{.type = kType,
                                          .dim_qk = kDimQk,
                                          .dim_v = kDimV,
                                          .has_softcap = true,
                                          .form = sm90::KernelForm::Mma,
                                          .q_stages = kDimQk > 128 ? 1 : 2,
                                          .mma_warps = kDimQk > 128 ? 8 : 4,
                                          .keys = 64};
  static_assert(kDimQk > 192 || sizeof(BackwardStorage<kConfig>) <= 99 * 1024);
};

namespace {

template <typename Instance>
void launch(const BackwardParams& params, int num_ctas, sm90::LaunchStart /*start*/,
            cudaStream_t stream) {
  constexpr BackwardConfig kC = Instance::kConfig;
  const int bytes = sm90::grant_storage<BackwardStorage<kC>, backward_kernel<Instance>>();
  backward_kernel<Instance><<<num_ctas, 32 * kC.mma_warps, bytes, stream>>>(params);
  cuda_check(cudaGetLastError(), "mma::backward_kernel");
}

template <typename Instance>
void convert_dq(const BackwardParams& params, cudaStream_t stream) {
  constexpr BackwardConfig kC = Instance::kConfig;
  const int head_groups = params.query.heads_q / params.query.packed_heads;
  const unsigned num_ctas = static_cast<unsigned>(params.query.num_q_tiles) * head_groups;
  sm90::dq_convert_kernel<kC.type, kC.dim_qk, 1, true>
      <<<num_ctas, sm90::kConvertThreads, 0, stream>>>(params);
  cuda_check(cudaGetLastError(), "dq_convert_kernel");
}

template <DType kType, int kDimQk, int kDimV>
constexpr sm90::BackwardInstance instance() {
  using Of = Instance<kType, kDimQk, kDimV>;
  return {Of::kConfig, launch<Of>, convert_dq<Of>};
}

constexpr sm90::BackwardInstance kInstances[] = {
    instance<DType::BFloat16, 64, 64>(),   instance<DType::BFloat16, 128, 128>(),
    instance<DType::BFloat16, 192, 128>(), instance<DType::BFloat16, 256, 256>(),
    instance<DType::Float16, 64, 64>(),    instance<DType::Float16, 128, 128>(),
    instance<DType::Float16, 192, 128>(),  instance<DType::Float16, 256, 256>(),
};

}  // namespace

std::span<const sm90::BackwardInstance> backward_instances() { return kInstances; }

}  // namespace magi::mma
