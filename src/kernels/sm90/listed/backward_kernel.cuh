// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/listed/backward_consumer.cuh"
#include "kernels/sm90/listed/backward_producer.cuh"

// The backward, if each query has a list of its keys. With P = 2^(S - lse) and dS = P * (dO V^T -
// delta), for the query heads of one kv head at one query and 64 keys at a time:
//
//   dQ += dS K      in registers, over all tiles of the list
//   dV  = P^T dO    of the tile's keys, added to float32 rows in device memory by atomics
//   dK  = dS^T Q    likewise
//
// Roles and barriers are those of kernel.cuh; P and dS pass between consumers through shared
// memory.
namespace magi::sm90 {

template <typename Instance>
__global__ void __launch_bounds__(Instance::kConfig.threads(), Instance::kConfig.ctas_per_sm)
    listed_backward_kernel(const __grid_constant__ ListedBackwardParams params) {
  constexpr ListedConfig kC = Instance::kConfig;
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<ListedBackwardStorage<kC>*>(shared_bytes);
  const int warp = ptx::uniform(static_cast<int>(threadIdx.x) / 32);
  if (threadIdx.x == 0) {
    shared.q_ring.init(kC.consumers);
    shared.k_ring.init(kC.consumers);
    shared.v_ring.init(kC.consumers);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (warp < kLoadingWarps) {
    ptx::lower_registers<kC.producer_registers>();
    ListedBackwardProducer<kC>(shared, params).run();
  } else {
    ptx::raise_registers<kC.consumer_registers()>();
    ListedBackwardConsumer<kC>(shared, params, warp / 4 - 1).run();
  }
}

}  // namespace magi::sm90
