// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

namespace magi::probe {

/// Each launches one kernel that waits, waits for its end and returns the launch's error.

/// A warp waits until a semaphore has the value 3; it holds `held` and nobody signals it.
cudaError_t wait_for_semaphore_sync(unsigned held);
/// Warp 1 of a CTA waits for a barrier that nobody arrives at.
cudaError_t wait_for_barrier_sync();

}  // namespace magi::probe
