// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/listed/latent_backward_consumer.cuh"
#include "kernels/sm90/listed/latent_consumer.cuh"
#include "kernels/sm90/listed/latent_producer.cuh"

// Attention with key lists over latents: rows of 576 elements whose first 512 are also the value,
// so that each is gathered once. An item is a query and 64 of its heads.
//
//                  512: left | right     64
//               +----------+----------+----+   tiles of 64 keys in turn: the scores of even ones
//     Q (64)    |          |          |    |   are warpgroup 0's, of odd ones warpgroup 1's. O of
//               +----------+----------+----+   the left columns is warpgroup 0's, of the right
//     tile (64) |     V    |     V    |    |   ones warpgroup 1's. P passes through shared memory,
//               +----------+----------+----+   over the last 64 columns.
//
// The backward handles one tile at a time: both warpgroups compute P and dS, and each owns columns
// of dQ and of the gradients of keys:
//
//   dQ += dS K                        in registers, over all tiles of the list
//   dK  = dS^T Q, plus P^T dO in V    of the tile's keys, added to float32 rows in device memory
//
// The next tile is loaded while the gradients of keys are computed, which need only Q and dO.
//
// | mbarrier       | completed by                               | then                |
// |----------------|--------------------------------------------|---------------------|
// | q, tiles full  | copies of 128 threads, and 4 warps         | consumers multiply  |
// | q, tiles empty | every consumer warp                        | loaders overwrite   |
namespace magi::sm90 {

template <DType kType>
__global__ void __launch_bounds__(kLatentThreads, 1)
    latent_forward_kernel(const __grid_constant__ ListedForwardParams params) {
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<LatentStorage*>(shared_bytes);
  const int warp = ptx::uniform(static_cast<int>(threadIdx.x) / 32);
  if (threadIdx.x == 0) {
    shared.q_ring.init(kLatentConsumers);
    shared.tiles.ring.init();
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (warp < kLoadingWarps) {
    ptx::lower_registers<kLatentForwardRegisters.producer>();
    LatentProducer<LatentStorage, ListedForwardParams, false>(shared, params).run();
  } else if (warp < 2 * kLoadingWarps) {
    ptx::raise_registers<kLatentForwardRegisters.consumer>();
    LatentConsumer<kType, 0>(shared, params).run();
  } else {
    ptx::raise_registers<kLatentForwardRegisters.consumer>();
    LatentConsumer<kType, 1>(shared, params).run();
  }
}

template <DType kType, bool kHasParts>
__global__ void __launch_bounds__(kLatentThreads, 1)
    latent_backward_kernel(const __grid_constant__ ListedBackwardParams params) {
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<LatentBackwardStorage*>(shared_bytes);
  const int warp = ptx::uniform(static_cast<int>(threadIdx.x) / 32);
  if (threadIdx.x == 0) {
    shared.q_ring.init(kLatentConsumers);
    shared.tiles.ring.init();
    shared.peers.init(1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (has_peer(params.shape)) ptx::cluster_sync();
  if (warp < kLoadingWarps) {
    ptx::lower_registers<kLatentBackwardRegisters.producer>();
    LatentProducer<LatentBackwardStorage, ListedBackwardParams, kHasParts>(shared, params).run();
  } else if (warp < 2 * kLoadingWarps) {
    ptx::raise_registers<kLatentBackwardRegisters.consumer>();
    LatentBackwardConsumer<kType, kHasParts, 0>(shared, params).run();
  } else {
    ptx::raise_registers<kLatentBackwardRegisters.consumer>();
    LatentBackwardConsumer<kType, kHasParts, 1>(shared, params).run();
  }
  // A CTA must not end while the other may still arrive at its barriers.
  if (has_peer(params.shape)) ptx::cluster_sync();
}

}  // namespace magi::sm90
