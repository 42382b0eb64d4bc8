// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/sm90/forward/launch.cuh"

namespace magi::sm90 {

template <DType kType, int kDim, bool kHasSoftcap>
struct Instance {
  static constexpr ForwardConfig kConfig{.type = kType, .dim = kDim, .has_softcap = kHasSoftcap};
};

namespace {

constexpr ForwardInstance kInstances[] = {
    forward_instance<Instance<DType::BFloat16, 64, false>>(),
    forward_instance<Instance<DType::BFloat16, 64, true>>(),
    forward_instance<Instance<DType::BFloat16, 128, false>>(),
    forward_instance<Instance<DType::BFloat16, 128, true>>(),
    forward_instance<Instance<DType::Float16, 64, false>>(),
    forward_instance<Instance<DType::Float16, 64, true>>(),
    forward_instance<Instance<DType::Float16, 128, false>>(),
    forward_instance<Instance<DType::Float16, 128, true>>(),
};

__global__ void __launch_bounds__(128) fill_kernel(float* values, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) values[i] = -INFINITY;
}

}  // namespace

std::span<const ForwardInstance> forward_instances() { return kInstances; }

const ForwardInstance* find_forward_instance(DType type, int dim, bool has_softcap) {
  for (const ForwardInstance& instance : kInstances) {
    const ForwardConfig& config = instance.config;
    if (config.type == type && config.dim >= dim && config.has_softcap == has_softcap) {
      return &instance;
    }
  }
  return nullptr;
}

void fill_no_logits(float* values, int count, cudaStream_t stream) {
  fill_kernel<<<(count + 127) / 128, 128, 0, stream>>>(values, count);
  cuda_check(cudaGetLastError(), "fill_kernel");
}

}  // namespace magi::sm90
