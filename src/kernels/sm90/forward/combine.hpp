// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/sm90/forward/params.hpp"
#include "magi/tensor.hpp"

namespace magi::sm90 {

/// out in its own type, strides in elements.
struct OutRows {
  void* data = nullptr;
  DType type = DType::BFloat16;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
};

/// Arguments of the kernel that merges the pieces of cut tiles in order of the keys' walk.
struct CombineParams {
  PartialRows partial;
  const SplitTile* splits = nullptr;
  const ListOutcome* outcome = nullptr;  ///< as in ForwardParams; null: the next two hold
  std::int32_t num_splits = 0;
  std::int32_t packed_heads = 1;
  std::int32_t tile_rows = 0;
  std::int32_t heads_q = 0;
  std::int32_t rows_q = 0;
  std::int32_t dim_v = 0;
  OutRows out;
  FloatRows lse;
  bool is_merging = false;
  SinkRows sink;
};

/// `max_rows`: rows of cut tiles over all heads, at most.
void launch_combine_kernel(const CombineParams& params, std::int64_t max_rows, cudaStream_t stream);

}  // namespace magi::sm90
