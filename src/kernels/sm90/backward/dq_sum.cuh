// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace magi::sm90 {

/// Where a thread's accumulators of dQ lie in a sum: element i of thread t of warpgroup w is float
/// w * dq_floats + (i / 4) * 512 + t * 4 + i % 4.
__device__ __forceinline__ int dq_place(int i, int thread) {
  return (i / 4) * 512 + thread * 4 + i % 4;
}

}  // namespace magi::sm90
