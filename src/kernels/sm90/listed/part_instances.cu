// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/listed/backward_launch.cuh"

namespace magi::sm90 {

std::span<const ListedBackwardInstance> listed_part_instances(DType type) {
  static constexpr auto kBf16 = listed_backward_instances_of<DType::BFloat16, true>();
  static constexpr auto kFp16 = listed_backward_instances_of<DType::Float16, true>();
  return type == DType::BFloat16 ? kBf16 : kFp16;
}

}  // namespace magi::sm90
