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

/// Enqueues the last kernel of a backward whose list the device makes from ranges. It sets
/// gradients to NaN if the list did not fit its memory. poison_unless_held does the same for masks
/// of blocks; this one uses programmatic dependent launch.
void enqueue_void_gradients(const VoidParams& params, cudaStream_t stream);

}  // namespace magi::sm90
