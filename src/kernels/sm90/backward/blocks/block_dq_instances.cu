// SPDX-License-Identifier: Apache-2.0
#include "base/check.hpp"
#include "kernels/sm90/backward/blocks/block_dq_kernel.cuh"

namespace magi::sm90 {

const BlockDqInstance& block_dq_instance(DType type, int rows) {
  MAGI_CHECK(type == DType::BFloat16 || type == DType::Float16);
  MAGI_CHECK(rows == 128 || rows == 64);
  static constexpr BlockDqInstance kBFloat[] = {block_dq_instance_of<DType::BFloat16, 64>(),
                                                block_dq_instance_of<DType::BFloat16, 128>()};
  static constexpr BlockDqInstance kHalf[] = {block_dq_instance_of<DType::Float16, 64>(),
                                              block_dq_instance_of<DType::Float16, 128>()};
  return (type == DType::BFloat16 ? kBFloat : kHalf)[rows / 128];
}

}  // namespace magi::sm90
