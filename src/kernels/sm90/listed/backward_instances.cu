// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/listed/backward_launch.cuh"

namespace magi::sm90 {

std::span<const ListedBackwardInstance> listed_backward_instances(DType type) {
  static constexpr auto kBf16 = listed_backward_instances_of<DType::BFloat16, false>();
  static constexpr auto kFp16 = listed_backward_instances_of<DType::Float16, false>();
  return type == DType::BFloat16 ? kBf16 : kFp16;
}

const ListedBackwardInstance* find_listed_backward_instance(DType type, int dim, int heads,
                                                            bool has_parts) {
  if (type != DType::BFloat16 && type != DType::Float16) return nullptr;
  for (const ListedBackwardInstance& instance :
       has_parts ? listed_part_instances(type) : listed_backward_instances(type)) {
    const ListedConfig& config = instance.config;
    if (config.dim >= dim && (config.consumers == 2) == (heads > 64)) return &instance;
  }
  return nullptr;
}

}  // namespace magi::sm90
