// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/pool.hpp"
#include "cuda/stream_buffer.hpp"

namespace magi::test {

/// Memory of device 0 in the order of the default stream: unlike with cudaMalloc and cudaFree, many
/// threads take and give it back at once without waiting for the device.
inline StreamBuffer pool_memory(std::size_t size_bytes) {
  static const PoolLease lease(0);  // what is given back stays for the next
  return {size_bytes, 0, nullptr};
}

}  // namespace magi::test
