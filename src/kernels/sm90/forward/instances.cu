// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/sm90/forward/launch.cuh"

namespace magi::sm90 {

template <DType kType, int kDim, bool kIsGeneral>
struct Instance {
  // At head dim 64 exponentials weigh twice as much: a third warpgroup fills their gaps,
  // and leaves general kernels registers for 64 keys.
  static constexpr ForwardConfig kConfig{.type = kType,
                                         .dim = kDim,
                                         .keys = kDim == 64 && kIsGeneral ? 64 : 128,
                                         .consumers = kDim == 64 ? 3 : 2,
                                         .kv_stages = kDim == 64 ? 8 : 5,
                                         .is_general = kIsGeneral};
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

const ForwardInstance* find_forward_instance(DType type, int dim, bool is_general) {
  for (const ForwardInstance& instance : kInstances) {
    const ForwardConfig& config = instance.config;
    if (config.type == type && config.dim >= dim && config.is_general == is_general) {
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
