// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/launch.cuh"
#include "cuda/ptx/wgmma_n128.cuh"
#include "cuda/ptx/wgmma_n64.cuh"
#include "kernels/sm90/backward/blocks/block_dq_consumer.cuh"
#include "kernels/sm90/backward/blocks/block_dq_loader.cuh"
#include "kernels/sm90/launch.cuh"

// This kernel computes dQ = scale * dS K under a mask of blocks. An item is a q tile and head
// group, walked as in a forward, with its scheduler, lists and gathered tiles of keys. It
// recomputes S, P, dP and dS, so that each sum of dQ has one writer. The main kernel computes dK
// and dV.
namespace magi::sm90 {

template <DType kType, int kRows>
struct BlockDqTypes {
  static constexpr bool kIsWide = kRows == 128;
  static constexpr ForwardConfig kConfig{.type = kType,
                                         .keys = 64,
                                         .consumers = kIsWide ? 2 : 1,
                                         .kv_stages = kIsWide ? 8 : 4,
                                         .q_stages = kIsWide ? 3 : 2,
                                         .has_pingpong = false,
                                         .trimmed_keys = 0};
};

template <typename Instance>
__global__ void __launch_bounds__(Instance::kConfig.threads(), Instance::kConfig.ctas_per_sm())
    block_dq_kernel(const __grid_constant__ BlockDqParams params) {
  constexpr ForwardConfig kC = Instance::kConfig;
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<BlockStorage<kC>*>(shared_bytes);
  const int warp = ptx::uniform(static_cast<int>(threadIdx.x) / 32);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(params.walk.forward.q);
    ptx::prefetch_tensor_map(params.dout);
    ptx::prefetch_tensor_map(params.walk.forward.k);
    ptx::prefetch_tensor_map(params.walk.forward.v);
    constexpr int kArrivals = 4 * kC.consumers * ptx::kArrivalsPerWarp;
    for (auto& ring : shared.forward.q_rings) ring.init(kArrivals);
    shared.forward.kv_ring.init(kArrivals);
    shared.forward.message_ring.init(kArrivals + 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (warp < 4) {
    ptx::lower_registers<kC.producer_registers()>();
    if (threadIdx.x == 0) {
      BlockDqLoader<kC>(shared, params).run();
      // The next kernel waits for this one only.
      ptx::await_kernels_before();
    }
    if (threadIdx.x == 32) BlockScheduler<kC>(shared, params.walk).run();
  } else {
    ptx::raise_registers<kC.consumer_registers()>();
    BlockDqConsumer<kC>(shared, params, warp / 4 - 1).run();
  }
}

template <typename Instance>
void launch_block_dq(const BlockDqParams& params, int num_ctas, cudaStream_t stream) {
  constexpr ForwardConfig kC = Instance::kConfig;
  const int bytes = grant_storage<BlockStorage<kC>, block_dq_kernel<Instance>>();
  launch_ahead(block_dq_kernel<Instance>, static_cast<unsigned>(num_ctas), kC.threads(), bytes,
               params, stream);
}

template <DType kType, int kRows>
constexpr BlockDqInstance block_dq_instance_of() {
  using Instance = BlockDqTypes<kType, kRows>;
  return {Instance::kConfig, launch_block_dq<Instance>};
}

}  // namespace magi::sm90
