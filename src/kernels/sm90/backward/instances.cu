// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/backward/launch.cuh"

namespace magi::sm90 {

template <DType kType, int kDim, bool kHasSoftcap>
struct BackwardInstanceOf {
  static constexpr BackwardConfig kConfig{
      .type = kType, .dim = kDim, .has_softcap = kHasSoftcap, .rows = kDim == 64 ? 128 : 64};
};

namespace {

constexpr BackwardInstance kInstances[] = {
    backward_instance<BackwardInstanceOf<DType::BFloat16, 64, false>>(),
    backward_instance<BackwardInstanceOf<DType::BFloat16, 64, true>>(),
    backward_instance<BackwardInstanceOf<DType::BFloat16, 128, false>>(),
    backward_instance<BackwardInstanceOf<DType::BFloat16, 128, true>>(),
    backward_instance<BackwardInstanceOf<DType::Float16, 64, false>>(),
    backward_instance<BackwardInstanceOf<DType::Float16, 64, true>>(),
    backward_instance<BackwardInstanceOf<DType::Float16, 128, false>>(),
    backward_instance<BackwardInstanceOf<DType::Float16, 128, true>>(),
};

}  // namespace

std::span<const BackwardInstance> backward_instances() { return kInstances; }

const BackwardInstance* find_backward_instance(DType type, int dim, bool has_softcap) {
  for (const BackwardInstance& instance : kInstances) {
    const BackwardConfig& config = instance.config;
    if (config.type == type && config.dim >= dim && config.has_softcap == has_softcap) {
      return &instance;
    }
  }
  return nullptr;
}

}  // namespace magi::sm90
