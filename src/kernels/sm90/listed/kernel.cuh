// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/listed/consumer.cuh"
#include "kernels/sm90/listed/producer.cuh"

// The forward of out = softmax(scale * Q K^T) V and its lse, if each query has a list of its keys.
//
//             keys of the list, gathered           rows of an item = query heads of one kv head at
//           +----------+----------+------+         one query; all see the same keys. 64 rows per
//   heads   |  tile 0  |  tile 1  | ...  |         consumer warpgroup; S, P and O in registers.
//           +----------+----------+------+
//
// Roles: the four warps of warpgroup 0 read the list and copy rows of K and V, 16 bytes per lane,
// into swizzled tiles. The other warpgroups are consumers. A CTA takes every gridDim-th item.
//
// | mbarrier          | completed by                               | then                |
// |-------------------|--------------------------------------------|---------------------|
// | q / k / v full    | copies of 128 threads, and 4 warps         | consumers multiply  |
// | q / k / v empty   | every consumer warp                        | loaders overwrite   |
namespace magi::sm90 {

/// `Instance` is a type with a `static constexpr ListedConfig kConfig`.
template <typename Instance>
__global__ void __launch_bounds__(Instance::kConfig.threads(), Instance::kConfig.ctas_per_sm)
    listed_forward_kernel(const __grid_constant__ ListedForwardParams params) {
  constexpr ListedConfig kC = Instance::kConfig;
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<ListedStorage<kC>*>(shared_bytes);
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
    ListedProducer<kC>(shared, params).run();
  } else {
    ptx::raise_registers<kC.consumer_registers()>();
    ListedConsumer<kC>(shared, params, warp / 4 - 1).run();
  }
}

}  // namespace magi::sm90
