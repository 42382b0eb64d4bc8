// SPDX-License-Identifier: Apache-2.0
#include "cuda/check.hpp"
#include "kernels/mma/forward/kernel.cuh"
#include "kernels/mma/launch.hpp"
#include "kernels/sm90/launch.cuh"

namespace magi::mma {

using sm90::FeatureSet;

/// Keys of a k tile for which there are registers: softcaps and maxima need some.
constexpr int keys_of(int dim_qk, bool is_general) {
  if (dim_qk == 64) return is_general ? 64 : 96;
  return is_general && dim_qk < 256 ? 32 : 64;
}

/// Tiles for which there are registers, and shared memory for two CTAs of four warps on every GPU,
/// or for one of eight on others: for a K and a V tile where a CTA has kLargeShared, else for two
/// each. kStages: those K and V tiles.
template <DType kType, int kDimQk, int kDimV, FeatureSet kFeatures, int kWarps, int kStages>
struct Instance {
  static constexpr ForwardConfig kConfig{.type = kType,
                                         .dim_qk = kDimQk,
                                         .dim_v = kDimV,
                                         .keys = keys_of(kDimQk, kFeatures == FeatureSet::General),
                                         .consumers = kDimV == 256 ? kWarps / 4 : 2,
                                         .kv_stages = kStages,
                                         .q_stages = 1,
                                         .trimmed_keys = 0,
                                         .features = kFeatures,
                                         .mma_warps = kWarps};
  static_assert(sizeof(ForwardStorage<kConfig>) <= (kWarps == 4    ? kSmallShared
                                                    : kStages == 2 ? kLargeShared
                                                                   : kLargestShared));
};

namespace {

template <typename Instance>
void launch(const ForwardParams& params, int num_ctas, cudaStream_t stream) {
  constexpr ForwardConfig kC = Instance::kConfig;
  const int bytes = sm90::grant_storage<ForwardStorage<kC>, forward_kernel<Instance>>();
  forward_kernel<Instance><<<num_ctas, 32 * kC.mma_warps, bytes, stream>>>(params);
  cuda_check(cudaGetLastError(), "mma::forward_kernel");
}

template <DType kType, int kDimQk, int kDimV, FeatureSet kFeatures, int kWarps = 4,
          int kStages = (kDimQk > 128 ? 2 : 4)>
constexpr sm90::ForwardInstance instance() {
  using Of = Instance<kType, kDimQk, kDimV, kFeatures, kWarps, kStages>;
  return {Of::kConfig, launch<Of>};
}

constexpr DType kBf16 = DType::BFloat16;
constexpr DType kFp16 = DType::Float16;
constexpr FeatureSet kAnyOut = FeatureSet::AnyOut;
constexpr FeatureSet kGeneral = FeatureSet::General;

// A plain call is served by the kernel for any out: the difference is in the end of an item alone.
// kWarps, kStages: of the widest heads.
template <int kWarps, int kStages>
constexpr sm90::ForwardInstance kInstances[] = {
    instance<kBf16, 64, 64, kAnyOut>(),
    instance<kBf16, 64, 64, kGeneral>(),
    instance<kBf16, 128, 128, kAnyOut>(),
    instance<kBf16, 128, 128, kGeneral>(),
    instance<kBf16, 192, 128, kAnyOut>(),
    instance<kBf16, 192, 128, kGeneral>(),
    instance<kBf16, 256, 256, kAnyOut, kWarps, kStages>(),
    instance<kBf16, 256, 256, kGeneral, kWarps, kStages>(),
    instance<kFp16, 64, 64, kAnyOut>(),
    instance<kFp16, 64, 64, kGeneral>(),
    instance<kFp16, 128, 128, kAnyOut>(),
    instance<kFp16, 128, 128, kGeneral>(),
    instance<kFp16, 192, 128, kAnyOut>(),
    instance<kFp16, 192, 128, kGeneral>(),
    instance<kFp16, 256, 256, kAnyOut, kWarps, kStages>(),
    instance<kFp16, 256, 256, kGeneral, kWarps, kStages>(),
};

}  // namespace

std::span<const sm90::ForwardInstance> forward_instances(std::size_t shared_bytes) {
  if (shared_bytes < kLargeShared) return kInstances<4, 2>;
  if (shared_bytes < kLargestShared) return kInstances<8, 2>;
  return kInstances<8, 4>;
}

}  // namespace magi::mma
