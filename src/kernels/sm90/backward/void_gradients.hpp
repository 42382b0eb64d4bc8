// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/schedule/host/backward_list.hpp"
#include "kernels/sm90/poison.hpp"

namespace magi::sm90 {

struct VoidParams {
  const BackwardOutcome* outcome = nullptr;
  PoisonedRows targets[3];
};

/// Enqueues the last kernel of a backward whose list the device makes from ranges: gradients become
/// NaN where the list did not fit. What poison_unless_held does for masks of blocks, but launched
/// ahead of the end of the kernel before it.
void enqueue_void_gradients(const VoidParams& params, cudaStream_t stream);

}  // namespace magi::sm90
