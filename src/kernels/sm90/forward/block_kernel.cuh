// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/launch.cuh"
#include "cuda/ptx/wgmma_n128.cuh"
#include "cuda/ptx/wgmma_n64.cuh"
#include "kernels/sm90/forward/block_loader.cuh"
#include "kernels/sm90/forward/block_params.hpp"
#include "kernels/sm90/forward/consumer.cuh"
#include "kernels/sm90/launch.cuh"

// The forward over lists of blocks: the consumers of the forward over slices, with a scheduler that
// cuts lists into runs and a loader that gathers tiles of keys.
namespace magi::sm90 {

/// Tiles of 128 rows at both head dims, which divide blocks of queries, or of 64 rows and keys.
template <DType kType, int kDim, FeatureSet kFeatures, int kRows>
struct BlockInstance {
  static constexpr bool kIsWide = kRows == 128;
  static constexpr ForwardConfig kConfig{.type = kType,
                                         .dim_qk = kDim,
                                         .dim_v = kDim,
                                         .keys = kIsWide ? 128 : 64,
                                         .consumers = kIsWide ? 2 : 1,
                                         .kv_stages = kDim == 64 ? 8 : 4,
                                         .q_stages = kIsWide ? 3 : 2,
                                         .has_pingpong = kIsWide,
                                         .trimmed_keys = kIsWide ? 64 : 0,
                                         .features = kFeatures};
};

template <typename Instance>
__global__ void __launch_bounds__(Instance::kConfig.threads(), Instance::kConfig.ctas_per_sm())
    block_forward_kernel(const __grid_constant__ BlockForwardParams params) {
  constexpr ForwardConfig kC = Instance::kConfig;
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<BlockStorage<kC>*>(shared_bytes);
  const int warp = ptx::uniform(static_cast<int>(threadIdx.x) / 32);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(params.forward.q);
    ptx::prefetch_tensor_map(params.forward.k);
    ptx::prefetch_tensor_map(params.forward.v);
    constexpr int kArrivals = 4 * kC.consumers * ptx::kArrivalsPerWarp;
    for (auto& ring : shared.forward.q_rings) ring.init(kArrivals);
    shared.forward.kv_ring.init(kArrivals);
    shared.forward.message_ring.init(kArrivals + 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (warp < 4) {
    ptx::lower_registers<kC.producer_registers()>();
    if (threadIdx.x == 0) BlockLoader<kC>(shared, params).run();
    if (threadIdx.x == 32) BlockScheduler<kC>(shared, params).run();
  } else {
    ptx::raise_registers<kC.consumer_registers()>();
    Consumer<kC>(shared.forward, params.forward, warp / 4 - 1).run();
  }
}

template <typename Instance>
void launch_blocks(const BlockForwardParams& params, int num_ctas, cudaStream_t stream) {
  constexpr ForwardConfig kC = Instance::kConfig;
  const int bytes = grant_storage<BlockStorage<kC>, block_forward_kernel<Instance>>();
  block_forward_kernel<Instance><<<num_ctas, kC.threads(), bytes, stream>>>(params);
  cuda_check(cudaGetLastError(), "block_forward_kernel");
}

template <DType kType, int kDim, FeatureSet kFeatures, int kRows>
constexpr BlockForwardInstance block_instance() {
  using Instance = BlockInstance<kType, kDim, kFeatures, kRows>;
  return {Instance::kConfig, launch_blocks<Instance>};
}

/// All of tiles of so many rows, ascending dims.
template <int kRows>
constexpr BlockForwardInstances block_instances_of() {
  using enum DType;
  using enum FeatureSet;
  return {
      block_instance<BFloat16, 64, Plain, kRows>(),  block_instance<BFloat16, 64, AnyOut, kRows>(),
      block_instance<BFloat16, 128, Plain, kRows>(), block_instance<BFloat16, 128, AnyOut, kRows>(),
      block_instance<Float16, 64, Plain, kRows>(),   block_instance<Float16, 64, AnyOut, kRows>(),
      block_instance<Float16, 128, Plain, kRows>(),  block_instance<Float16, 128, AnyOut, kRows>(),
  };
}

}  // namespace magi::sm90
