// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/sm90/forward/params.hpp"

namespace magi::sm90 {

/// Arguments of the kernel that merges the splits of split tiles in order of the keys' walk.
struct CombineParams {
  PartialRows partial;
  const SplitTile* splits = nullptr;
  const ListOutcome* outcome = nullptr;  ///< as in ForwardParams; null: the next two hold
  std::int32_t num_split_tiles = 0;
  std::int32_t packed_heads = 1;
  std::int32_t tile_rows = 0;
  std::int32_t heads_q = 0;
  std::int32_t rows_q = 0;
  std::int32_t dim_v = 0;
  StridedRows out;
  StridedRows lse;
  bool is_merging = false;
  SinkRows sink;
};

/// Enqueues that kernel. `max_rows`: rows of split tiles over all heads, at most.
void launch_combine_kernel(const CombineParams& params, std::int64_t max_rows, cudaStream_t stream);

}  // namespace magi::sm90
