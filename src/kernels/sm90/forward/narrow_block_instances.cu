// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/forward/block_kernel.cuh"

namespace magi::sm90 {

const BlockForwardInstances& narrow_block_instances() {
  static constexpr BlockForwardInstances kNarrow = block_instances_of<64>();
  return kNarrow;
}

}  // namespace magi::sm90
