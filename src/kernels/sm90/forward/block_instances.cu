// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/forward/block_kernel.cuh"

namespace magi::sm90 {

const BlockForwardInstance* find_block_forward_instance(DType type, int dim_qk, int dim_v,
                                                        FeatureSet features, int rows) {
  static constexpr auto kWide = block_instances_of<128>();
  for (const BlockForwardInstance& instance : rows == 128 ? kWide : narrow_block_instances()) {
    const ForwardConfig& config = instance.config;
    if (config.type == type && config.dim_qk >= dim_qk && config.dim_v >= dim_v &&
        config.features == features) {
      return &instance;
    }
  }
  return nullptr;
}

}  // namespace magi::sm90
