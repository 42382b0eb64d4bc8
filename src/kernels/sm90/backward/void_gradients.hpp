// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/sm90/arguments.hpp"
#include "kernels/worklist/backward_list.hpp"

namespace magi::sm90 {

/// All elements of a gradient.
struct VoidedRows {
  StridedRows rows;
  std::int64_t num_rows = 0;
  std::int64_t heads = 0;
  std::int64_t dim = 0;
};

struct VoidParams {
  const BackwardOutcome* outcome = nullptr;
  VoidedRows targets[3];
};

/// Enqueues the last kernel of a call whose list is made on the device: gradients become NaN where
/// the list did not fit, as no call is to give wrong ones without a sign.
void enqueue_void_gradients(const VoidParams& params, cudaStream_t stream);

}  // namespace magi::sm90
