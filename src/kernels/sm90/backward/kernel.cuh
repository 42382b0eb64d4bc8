// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "kernels/sm90/backward/consumer.cuh"
#include "kernels/sm90/backward/dq_convert_warp.cuh"
#include "kernels/sm90/backward/dq_semaphores.cuh"
#include "kernels/sm90/backward/long_query_consumer.cuh"
#include "kernels/sm90/backward/own_rows_consumer.cuh"
#include "kernels/sm90/backward/own_rows_producer.cuh"
#include "kernels/sm90/backward/producer.cuh"
#include "kernels/sm90/backward/seen_tile.cuh"
#include "kernels/sm90/backward/shared_keys_consumer.cuh"

// The main kernel computes gradients of out = softmax(scale * Q K^T + mask) V. An item is a k tile
// and kv head, with all or a split of its query heads, and the rows that see the k tile:
//
//   P  = exp(scale * Q K^T - lse)      dV = P^T dO       delta = rowsum(dO * O) - dlse
//   dP = dO V^T                        dK = scale * dS^T Q
//   dS = P * (dP - delta)              dQ = scale * dS K, a sum over k tiles
//
//                 64 or 128 rows of a q tile (tokens x packed heads)
//                +----------------+
//     64 keys    |  S^T, P^T, ... |  warpgroup 0    Each warpgroup holds its keys' dK and dV and
//                +----------------+                 transposed scores in registers; P^T and dS^T
//     64 keys    |                |  warpgroup 1    are A operands in place. dS^T of both also
//                +----------------+                 goes to shared memory, and each warpgroup
//                                                   multiplies half of dQ with it.
//
// pin(x) in a step keeps x in registers across an asynchronous product; it is no fence.
//
// At head dim 256 two CTAs share the k tile: each has 64 keys, which both its warpgroups share
// (shared_keys_consumer.cuh). At 192 dS is an operand in shared memory only
// (long_query_consumer.cuh). With k tiles of 64 keys each warpgroup has its own q tiles, and
// another kernel computes dQ (own_rows_consumer.cuh).
//
// Roles of warpgroup 0: one thread of warp 0 takes items, walks records and loads. If additions to
// dQ sums are ordered, one thread of warp 1 waits for semaphores, one of warp 2 signals them, and
// warp 3 converts complete sums into rows of dq. Another thread of warp 1 loads tiles with rows
// that nobody sees. If each warpgroup has its own q tiles, one thread of warp 0 takes items and
// walks records, one of warp 1 loads Q and one of warp 2 dO. Warpgroups 1 and 2 are consumers. The
// persistent grid draws items from a ticket counter in the order of the list.
//
// | mbarrier      | completed by                   | then                                    |
// |---------------|--------------------------------|-----------------------------------------|
// | k / v full    | producer's announcement, bytes | consumers read the item and multiply    |
// | q / dout full | producer's announcement, bytes | consumers multiply, read both vectors   |
// | empty         | every consumer warp            | the producer overwrites                 |
// | step full     | producer                       | the waiter awaits the step's semaphore  |
// | add full      | semaphore waiter               | consumers add dQ of the step            |
// | added         | every consumer warp            | the semaphore is signalled              |
// | add empty     | semaphore signaller            | the waiter overwrites                   |
// | dS full       | every consumer warp            | dQ is multiplied                        |
// | peer dS       | the other CTA's bytes          | dQ is multiplied with them              |
// | ticket        | producer of the first CTA      | the second CTA's producer takes it      |
// Named barriers: shared.cuh. Sums that the main kernel does not convert become dq in
// dq_convert_kernel.cuh; lse and delta of the rows come from prepare.cu.
namespace magi::sm90 {

/// The consumer that is compiled for a warpgroup by itself.
template <BackwardConfig kC, int kWarpgroup>
using ConsumerOf = std::conditional_t<
    kC.is(KernelForm::LongQueries), LongQueryConsumer<kC, kWarpgroup>,
    SharedKeysConsumer<kC, kWarpgroup == 0 ? ScoreRole::Probabilities : ScoreRole::Gradients>>;

/// Runs the roles of the first warpgroup.
template <BackwardConfig kC>
__device__ __forceinline__ void run_producers(BackwardStorage<kC>& shared,
                                              const BackwardParams& params, int warp) {
  if (threadIdx.x == 0) {
    // Two versions of the producer: the one that looks for unseen rows at each step refills buffers
    // so late that masks without such rows lose 8 %.
    if (has_unseen_rows(params)) {
      BackwardProducer<kC, true>(shared, params).run();
    } else {
      BackwardProducer<kC, false>(shared, params).run();
    }
  }
  // NOTE: a branch at run time, although the config knows the answer: without this code ptxas runs
  // out of registers in the other instances and serialises their products.
  const bool is_ordered = params.dq_order.is_ordered;
  // A lane of the waiter's warp. The two threads diverge here, so neither waits for the other.
  if (threadIdx.x == 33) return CutLoader<kC>(shared, params).run();
  if (is_ordered && threadIdx.x == 32) DqSemaphoreWaiter<kC>(shared, params).run();
  if (is_ordered && threadIdx.x == 64) DqSemaphoreSignaller<kC>(shared, params).run();
  if constexpr (kC.has_converter()) {
    if (warp == 3) DqConvertWarp<kC>(shared, params).run();
  }
}

/// Runs a CTA.
template <BackwardConfig kC>
__device__ __forceinline__ void run_backward(const BackwardParams& params) {
  static_assert(kC.has_registers());
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<BackwardStorage<kC>*>(shared_bytes);
  const int warp = ptx::uniform(static_cast<int>(threadIdx.x) / 32);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(params.q);
    ptx::prefetch_tensor_map(params.dout);
    ptx::prefetch_tensor_map(params.k);
    ptx::prefetch_tensor_map(params.v);
    shared.init_barriers();
    ptx::fence_mbarrier_init();
  }
  if constexpr (kC.ctas() == 1) {
    __syncthreads();
  } else {
    ptx::cluster_sync();
  }
  ptx::await_kernels_before();
  if (warp < 4) {
    ptx::lower_registers<kC.producer_registers()>();
    if constexpr (kC.is(KernelForm::OwnRows)) {
      if (threadIdx.x == 0) OwnRowsWalker<kC>(shared, params).run();
      if (threadIdx.x == 32) StepLoader<kC, true>(shared, params).run();
      if (threadIdx.x == 64) StepLoader<kC, false>(shared, params).run();
    } else {
      run_producers<kC>(shared, params, warp);
    }
  } else {
    if constexpr (kC.is(KernelForm::SharedKeys) || kC.is(KernelForm::LongQueries)) {
      if (warp < 8) {
        ptx::raise_registers<kC.consumer_registers(0)>();
        ConsumerOf<kC, 0>(shared, params).run();
      } else {
        ptx::raise_registers<kC.consumer_registers(1)>();
        ConsumerOf<kC, 1>(shared, params).run();
      }
    } else {
      using Any =
          std::conditional_t<kC.is(KernelForm::OwnRows), OwnRowsConsumer<kC>, BackwardConsumer<kC>>;
      ptx::raise_registers<kC.consumer_registers(0)>();
      Any(shared, params, warp / 4 - 1).run();
    }
  }
  // The other CTA may still read this one's shared memory or write there.
  if constexpr (kC.ctas() > 1) ptx::cluster_sync();
}

/// `Instance` is a type with a `static constexpr BackwardConfig kConfig`: nvcc's host stubs cannot
/// name a kernel whose template argument is a config value.
template <typename Instance, bool kIsOrdered>
__global__ void __launch_bounds__(Instance::kConfig.threads(), 1)
    backward_kernel(const __grid_constant__ BackwardParams params) {
  run_backward<Instance::kConfig.ordered(kIsOrdered)>(params);
}

/// Does the same with two CTAs per k tile.
template <typename Instance, bool kIsOrdered>
__global__ void __launch_bounds__(Instance::kConfig.threads(), 1) __cluster_dims__(2, 1, 1)
    backward_pair_kernel(const __grid_constant__ BackwardParams params) {
  run_backward<Instance::kConfig.ordered(kIsOrdered)>(params);
}

}  // namespace magi::sm90
