// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <array>

#include "kernels/schedule/blocks/block_lists.hpp"
#include "kernels/sm90/forward/config.hpp"
#include "kernels/sm90/forward/params.hpp"

namespace magi::sm90 {

/// Arguments of a launch over lists of blocks. Of `forward` the list's fields are not read but
/// those of packed heads and of a tile's tokens; its k and v load units of keys.
struct BlockForwardParams {
  ForwardParams forward;
  BlockGrid grid;
  GatherShape gather;
  const BlockList* lists = nullptr;
  const std::int32_t* order = nullptr;
  const std::int32_t* entries = nullptr;
  unsigned* ticket = nullptr;         ///< 0 between launches
  std::int32_t num_items = 0;         ///< over all kv heads
  std::int32_t tiles_per_block = 1;   ///< q tiles of a q block
  std::int32_t groups_per_block = 1;  ///< head groups of a kv head
};

struct BlockForwardInstance {
  ForwardConfig config;
  void (*launch)(const BlockForwardParams& params, int num_ctas, cudaStream_t stream) = nullptr;
};

using BlockForwardInstances = std::array<BlockForwardInstance, 8>;

/// Those of tiles of 64 rows.
const BlockForwardInstances& narrow_block_instances();

/// The first instance for a type and tiles of `rows` rows, 128 or 64, that holds both head dims;
/// null when there is none.
const BlockForwardInstance* find_block_forward_instance(DType type, int dim_qk, int dim_v,
                                                        FeatureSet features, int rows);

}  // namespace magi::sm90
