// SPDX-License-Identifier: Apache-2.0
#include "cuda/check.hpp"
#include "kernels/mma/backward/kernel.cuh"
#include "kernels/mma/launch.hpp"
#include "kernels/sm90/backward/dq_convert_kernel.cuh"
#include "kernels/sm90/launch.cuh"

namespace magi::mma {

/// Tiles of kKeys keys by a warp for each 16 of them. kStages: of Q and dO, 0: as many as GPUs
/// since compute capability 8.0 have shared memory for.
template <DType kType, int kDimQk, int kDimV, int kKeys, int kStages = 0>
struct Instance {
  static constexpr BackwardConfig kConfig{.type = kType,
                                          .dim_qk = kDimQk,
                                          .dim_v = kDimV,
                                          .has_softcap = true,
                                          .form = sm90::KernelForm::Mma,
                                          .q_stages = kStages > 0    ? kStages
                                                      : kDimQk > 128 ? 1
                                                                     : 2,
                                          .dout_stages = kStages > 0                    ? kStages
                                                         : kDimQk == 64 || kKeys == 128 ? 2
                                                                                        : 1,
                                          .mma_warps = kDimQk > 128 ? 8 : kKeys / 16,
                                          .keys = kKeys};
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

template <DType kType, int kDimQk, int kDimV, int kKeys, int kStages = 0>
constexpr sm90::BackwardInstance instance() {
  using Of = Instance<kType, kDimQk, kDimV, kKeys, kStages>;
  constexpr bool kIsSmall = kDimQk == 192 || kKeys * kDimQk <= 128 * 64;
  static_assert(sizeof(BackwardStorage<Of::kConfig>) <= (kIsSmall      ? kSmallShared
                                                         : kStages > 0 ? kLargestShared
                                                                       : kLargeShared));
  return {Of::kConfig, launch<Of>, convert_dq<Of>};
}

constexpr DType kBf16 = DType::BFloat16;
constexpr DType kFp16 = DType::Float16;

constexpr sm90::BackwardInstance kLarge[] = {
    instance<kBf16, 64, 64, 64>(),   instance<kBf16, 128, 128, 128>(),
    instance<kBf16, 192, 128, 64>(), instance<kBf16, 256, 256, 64>(),
    instance<kFp16, 64, 64, 64>(),   instance<kFp16, 128, 128, 128>(),
    instance<kFp16, 192, 128, 64>(), instance<kFp16, 256, 256, 64>(),
};
constexpr sm90::BackwardInstance kLargest[] = {
    kLarge[0], kLarge[1], kLarge[2], instance<kBf16, 256, 256, 64, 2>(),
    kLarge[4], kLarge[5], kLarge[6], instance<kFp16, 256, 256, 64, 2>(),
};
constexpr sm90::BackwardInstance kSmall[] = {
    kLarge[0], instance<kBf16, 128, 128, 64>(), kLarge[2],
    kLarge[4], instance<kFp16, 128, 128, 64>(), kLarge[6],
};

}  // namespace

std::span<const sm90::BackwardInstance> backward_instances(std::size_t shared_bytes) {
  if (shared_bytes < kLargeShared) return kSmall;
  if (shared_bytes < kLargestShared) return kLarge;
  return kLargest;
}

}  // namespace magi::mma
