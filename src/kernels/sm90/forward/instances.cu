// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/sm90/forward/launch.cuh"

namespace magi::sm90 {

template <DType kType, int kDim, FeatureSet kFeatures>
struct Instance {
  // At head dim 64 exponentials weigh twice as much: a third warpgroup fills their gaps,
  // and leaves general kernels registers for 64 keys.
  static constexpr ForwardConfig kConfig{
      .type = kType,
      .dim_qk = kDim,
      .dim_v = kDim,
      .keys = kDim == 64 && kFeatures == FeatureSet::General ? 64 : 128,
      .consumers = kDim == 64 ? 3 : 2,
      .kv_stages = kDim == 64 ? 8 : 4,
      .features = kFeatures};
};

namespace {

constexpr ForwardInstance kInstances[] = {
    forward_instance<Instance<DType::BFloat16, 64, FeatureSet::Plain>>(),
    forward_instance<Instance<DType::BFloat16, 64, FeatureSet::AnyOut>>(),
    forward_instance<Instance<DType::BFloat16, 64, FeatureSet::General>>(),
    forward_instance<Instance<DType::BFloat16, 128, FeatureSet::Plain>>(),
    forward_instance<Instance<DType::BFloat16, 128, FeatureSet::AnyOut>>(),
    forward_instance<Instance<DType::BFloat16, 128, FeatureSet::General>>(),
    forward_instance<Instance<DType::Float16, 64, FeatureSet::Plain>>(),
    forward_instance<Instance<DType::Float16, 64, FeatureSet::AnyOut>>(),
    forward_instance<Instance<DType::Float16, 64, FeatureSet::General>>(),
    forward_instance<Instance<DType::Float16, 128, FeatureSet::Plain>>(),
    forward_instance<Instance<DType::Float16, 128, FeatureSet::AnyOut>>(),
    forward_instance<Instance<DType::Float16, 128, FeatureSet::General>>(),
};

__global__ void __launch_bounds__(128) fill_kernel(float* values, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) values[i] = -INFINITY;
}

}  // namespace

std::span<const ForwardInstance> forward_instances() { return kInstances; }

const ForwardInstance* find_forward_instance(DType type, int dim_qk, int dim_v,
                                             FeatureSet features) {
  for (const ForwardInstance& instance : kInstances) {
    const ForwardConfig& config = instance.config;
    if (config.type == type && config.dim_qk >= dim_qk && config.dim_v >= dim_v &&
        config.features == features) {
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
