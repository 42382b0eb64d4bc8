// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/sm90/forward/launch.cuh"

namespace magi::sm90 {

template <DType kType, int kDim, Scope kScope>
struct Instance {
  // At head dim 64 exponentials weigh twice as much: a third warpgroup fills their gaps,
  // and leaves general kernels registers for 64 keys.
  static constexpr ForwardConfig kConfig{.type = kType,
                                         .dim_qk = kDim,
                                         .dim_v = kDim,
                                         .keys = kDim == 64 && kScope == Scope::General ? 64 : 128,
                                         .consumers = kDim == 64 ? 3 : 2,
                                         .kv_stages = kDim == 64 ? 8 : 4,
                                         .scope = kScope};
};

namespace {

constexpr ForwardInstance kInstances[] = {
    forward_instance<Instance<DType::BFloat16, 64, Scope::Plain>>(),
    forward_instance<Instance<DType::BFloat16, 64, Scope::AnyOut>>(),
    forward_instance<Instance<DType::BFloat16, 64, Scope::General>>(),
    forward_instance<Instance<DType::BFloat16, 128, Scope::Plain>>(),
    forward_instance<Instance<DType::BFloat16, 128, Scope::AnyOut>>(),
    forward_instance<Instance<DType::BFloat16, 128, Scope::General>>(),
    forward_instance<Instance<DType::Float16, 64, Scope::Plain>>(),
    forward_instance<Instance<DType::Float16, 64, Scope::AnyOut>>(),
    forward_instance<Instance<DType::Float16, 64, Scope::General>>(),
    forward_instance<Instance<DType::Float16, 128, Scope::Plain>>(),
    forward_instance<Instance<DType::Float16, 128, Scope::AnyOut>>(),
    forward_instance<Instance<DType::Float16, 128, Scope::General>>(),
};

__global__ void __launch_bounds__(128) fill_kernel(float* values, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) values[i] = -INFINITY;
}

}  // namespace

std::span<const ForwardInstance> forward_instances() { return kInstances; }

const ForwardInstance* find_forward_instance(DType type, int dim_qk, int dim_v, Scope scope) {
  for (const ForwardInstance& instance : kInstances) {
    const ForwardConfig& config = instance.config;
    if (config.type == type && config.dim_qk >= dim_qk && config.dim_v >= dim_v &&
        config.scope == scope) {
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
