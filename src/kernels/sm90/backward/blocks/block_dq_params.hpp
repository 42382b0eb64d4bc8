// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/sm90/backward/prepare.hpp"
#include "kernels/sm90/forward/block_params.hpp"

namespace magi::sm90 {

/// Arguments of a launch that computes dq under a mask of blocks. `walk` has those of a forward
/// over the same lists, without outputs.
struct BlockDqParams {
  BlockForwardParams walk;
  CUtensorMap dout;  ///< like q
  PackedRows packed;
  const float* lse_log2 = nullptr;  ///< see PrepareParams
  const float* delta = nullptr;     ///< likewise
  StridedRows dq;
  std::int32_t dim = 0;    ///< columns of dq
  bool is_adding = false;  ///< dq is added to what is there, in float32
};

struct BlockDqInstance {
  ForwardConfig config;
  /// Enqueues a launch that starts while the kernel before it, which has waited for its inputs,
  /// ends.
  void (*launch)(const BlockDqParams& params, int num_ctas, cudaStream_t stream) = nullptr;
};

/// The parameters for head dims up to 128 and tiles of `rows` rows, 128 or 64.
const BlockDqInstance& block_dq_instance(DType type, int rows);

}  // namespace magi::sm90
