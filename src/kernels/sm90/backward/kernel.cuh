// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/backward/consumer.cuh"
#include "kernels/sm90/backward/finisher.cuh"
#include "kernels/sm90/backward/producer.cuh"
#include "kernels/sm90/backward/turns.cuh"

// Gradients of out = softmax(scale * Q K^T + mask) V for one k tile and kv head per item, its query
// heads (or a piece of them) and the rows that see it:
//
//   P  = exp(scale * Q K^T - lse)      dV = P^T dO       delta = rowsum(dO * O) - dlse
//   dP = dO V^T                        dK = scale * dS^T Q
//   dS = P * (dP - delta)              dQ = scale * dS K, a sum over k tiles
//
//                 64 or 128 rows of a q tile (tokens x packed heads)
//                +----------------+
//     64 keys    |  S^T, P^T, ... |  warpgroup 0    Each warpgroup holds its keys' dK and dV and
//                +----------------+                 transposed scores in registers; P^T and dS^T
//     64 keys    |                |  warpgroup 1    are A operands as they lie. dS^T of both also
//                +----------------+                 goes to shared memory, and each warpgroup
//                                                   multiplies half of dQ with it.
//
// Roles: of warpgroup 0, one thread of warp 0 takes items, walks records and loads; where the order
// of dQ's sums is fixed, one of warp 1 awaits turns, one of warp 2 passes them on and warp 3 makes
// rows of dq of complete sums. Warpgroups 1 and 2: consumers. The persistent grid draws items from
// a ticket counter in the order of the list.
//
// | mbarrier      | completed by                   | then                                    |
// |---------------|--------------------------------|-----------------------------------------|
// | k / v full    | producer's announcement, bytes | consumers read the item and multiply    |
// | q / dout full | producer's announcement, bytes | consumers multiply, read both vectors   |
// | empty         | every consumer warp            | the producer overwrites                 |
// | step full     | producer                       | the watcher looks up, awaits the turn   |
// | turn ready    | watcher                        | consumers add dQ of the step            |
// | added         | every consumer warp            | the turn is passed on                   |
// | turn empty    | passer                         | the watcher overwrites                  |
// | scores full   | every consumer warp            | dQ is multiplied                        |
// Named barriers: shared.cuh. The sums that the finisher does not take become dq in finish.cuh;
// levels and offsets come from prepare.cu.
namespace magi::sm90 {

template <BackwardConfig kC>
__device__ __forceinline__ void init_barriers(BackwardStorage<kC>& shared) {
  constexpr int kArrivals = 4 * kC.consumers * ptx::kArrivalsPerWarp;
  for (int stage = 0; stage < kInfoStages; ++stage) ptx::mbarrier_init(shared.step_full[stage], 1);
  for (int stage = 0; stage < kTurnStages; ++stage) {
    shared.turns[stage] = {};
    ptx::mbarrier_init(shared.turn_ready[stage], 1);
    ptx::mbarrier_init(shared.turn_empty[stage], 1);
    ptx::mbarrier_init(shared.added[stage], kArrivals);
  }
  for (int stage = 0; stage < kFinishStages; ++stage) {
    ptx::mbarrier_init(shared.finish_full[stage], 1);
    ptx::mbarrier_init(shared.finish_empty[stage], ptx::kArrivalsPerWarp);
  }
  for (int stage = 0; stage < kQuarterStages; ++stage)
    ptx::mbarrier_init(shared.sum_full[stage], 1);
  for (int stage = 0; stage < kScoreStages; ++stage) {
    ptx::mbarrier_init(shared.scores_full[stage], kArrivals);
  }
  for (int stage = 0; stage < kC.q_stages; ++stage) {
    ptx::mbarrier_init(shared.q_full[stage], 1);
    ptx::mbarrier_init(shared.q_empty[stage], kArrivals);
  }
  for (int stage = 0; stage < kC.dout_stages; ++stage) {
    ptx::mbarrier_init(shared.dout_full[stage], 1);
    ptx::mbarrier_init(shared.dout_empty[stage], kArrivals);
  }
  ptx::mbarrier_init(shared.k_full, 1);
  ptx::mbarrier_init(shared.k_empty, kArrivals);
  ptx::mbarrier_init(shared.v_full, 1);
  ptx::mbarrier_init(shared.v_empty, kArrivals);
  ptx::fence_mbarrier_init();
}

/// `Instance` is a type with a `static constexpr BackwardConfig kConfig`: nvcc's host stubs cannot
/// name a kernel whose template argument is a config value.
template <typename Instance, bool kIsOrdered>
__global__ void __launch_bounds__(Instance::kConfig.threads(), 1)
    backward_kernel(const __grid_constant__ BackwardParams params) {
  constexpr BackwardConfig kC = Instance::kConfig.ordered(kIsOrdered);
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<BackwardStorage<kC>*>(shared_bytes);
  const int warp = ptx::uniform(static_cast<int>(threadIdx.x) / 32);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(params.q);
    ptx::prefetch_tensor_map(params.dout);
    ptx::prefetch_tensor_map(params.k);
    ptx::prefetch_tensor_map(params.v);
    init_barriers(shared);
  }
  __syncthreads();
  ptx::await_kernels_before();
  if (warp < 4) {
    ptx::lower_registers<kC.producer_registers>();
    if (threadIdx.x == 0) BackwardProducer<kC>(shared, params).run();
    // NOTE: asked at run time though it is known: without this code ptxas runs out of registers in
    // the fast instances and serialises their products.
    if (params.is_ordered && threadIdx.x == 32) TurnWatcher<kC>(shared, params).run();
    if (params.is_ordered && threadIdx.x == 64) TurnPasser<kC>(shared, params).run();
    if constexpr (kC.is_ordered) {
      if (warp == 3) DqFinisher<kC>(shared, params).run();
    }
  } else {
    ptx::raise_registers<kC.consumer_registers>();
    BackwardConsumer<kC>(shared, params, warp / 4 - 1).run();
  }
}

}  // namespace magi::sm90
