// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "kernels/sm90/backward/launch.cuh"

namespace magi::sm90 {

template <DType kType, int kDim, bool kHasSoftcap>
struct BackwardInstanceOf {
  static constexpr BackwardConfig kConfig{
      .type = kType,
      .dim_qk = kDim,
      .dim_v = kDim,
      .has_softcap = kHasSoftcap,
      .form = kDim == 64 ? KernelForm::Wide : KernelForm::Narrow};
};

std::span<const BackwardInstance> backward_instances() {
  // By type, ascending dims.
  static const std::array kInstances{
      backward_instance<BackwardInstanceOf<DType::BFloat16, 64, false>>(),
      backward_instance<BackwardInstanceOf<DType::BFloat16, 64, true>>(),
      backward_instance<BackwardInstanceOf<DType::BFloat16, 128, false>>(),
      backward_instance<BackwardInstanceOf<DType::BFloat16, 128, true>>(),
      long_query_instance(DType::BFloat16),
      shared_keys_instance(DType::BFloat16),
      backward_instance<BackwardInstanceOf<DType::Float16, 64, false>>(),
      backward_instance<BackwardInstanceOf<DType::Float16, 64, true>>(),
      backward_instance<BackwardInstanceOf<DType::Float16, 128, false>>(),
      backward_instance<BackwardInstanceOf<DType::Float16, 128, true>>(),
      long_query_instance(DType::Float16),
      shared_keys_instance(DType::Float16),
  };
  return kInstances;
}

}  // namespace magi::sm90
