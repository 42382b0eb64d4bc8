// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace magi::sm90 {

/// Where a thread's accumulators of dQ lie in a sum: element i of thread t of warpgroup w is float
/// w * dq_floats + dq_place(i, t). 512 floats are a chunk, 8 columns of 64 rows. In a deterministic
/// sum the places of neighbouring pairs of rows are exchanged, so that the dQ converter reads them
/// from shared memory without bank conflicts; each 8 threads still share a line.
template <bool kIsDeterministic>
__device__ __forceinline__ int dq_place(int i, int thread) {
  const int place = kIsDeterministic ? thread ^ (thread >> 3 & 3) : thread;
  return (i / 4) * 512 + place * 4 + i % 4;
}

}  // namespace magi::sm90
