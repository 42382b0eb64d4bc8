// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/forward/consumer.cuh"
#include "kernels/sm90/forward/loader.cuh"
#include "kernels/sm90/forward/scheduler.cuh"

// out = softmax(scale * Q K^T + mask) V and its lse, for one q tile and head group per item.
//
//            k tiles, high keys to low              rows of a q tile = tokens x packed heads,
//          +----------+----------+------+           64 per consumer warpgroup: S, P and O stay in
//   q tile |  full    |  masked  |short |           registers; Q, K and V tiles come by bulk copies
//          +----------+----------+------+           into shared memory, K and V through one ring.
//
// Roles: warpgroup 0: one thread of warp 0 loads, one of warp 1 schedules (items and records).
// Warpgroups 1..: consumers. The persistent grid draws items from a ticket counter in the order of
// the list. Items whose keys do not come in time are deferred for a second launch.
//
// A launch begins ahead of the end of the kernel before it and waits for that one here, before it
// touches what others read or write: all but the thread that takes items, which waits when it has
// read the first one in a list of the host's, for that does not change. A launch beside the kernel
// that brings keys waits for it at its end. When a CTA has taken its last item it lets the next
// kernel begin on what multiprocessors are free.
//
// | mbarrier      | completed by                     | then                                    |
// |---------------|----------------------------------|-----------------------------------------|
// | message full  | scheduler                        | loader and consumers read the run       |
// | q / kv full   | loader's announcement + bytes    | consumers multiply                      |
// | empty         | every reading warp               | its writer overwrites                   |
// Named barriers: shared.cuh.
namespace magi::sm90 {

/// Whether a launch over a list made on the device is the one that the list turned out to need.
__device__ __forceinline__ bool is_wanted(const ForwardParams& params) {
  ptx::await_kernels_before();  // launched ahead of their end
  if (params.outcome->packed_heads != params.packed_heads) return false;
  if (params.wanted == WantedList::Any) return true;
  return (params.outcome->num_slots > 0) == (params.wanted == WantedList::WithSplits);
}

/// All roles of a launch. `spare`: what warps 2 and 3 do, which have no role; called with the warp.
template <ForwardConfig kC, typename Spare>
__device__ __forceinline__ void run_roles(const ForwardParams& params, const Spare& spare) {
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<SharedStorage<kC>*>(shared_bytes);
  const int warp = ptx::uniform(static_cast<int>(threadIdx.x) / 32);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(params.q);
    ptx::prefetch_tensor_map(params.k);
    ptx::prefetch_tensor_map(params.v);
    ptx::prefetch_tensor_map(params.v_window);
    constexpr int kArrivals = 4 * kC.consumers * ptx::kArrivalsPerWarp;
    for (auto& ring : shared.q_rings) ring.init(kArrivals / kC.q_parts());
    shared.kv_ring.init(kArrivals);
    shared.message_ring.init(kArrivals + 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (warp != 1 && !params.is_beside) ptx::await_kernels_before();
  if (warp < 4) {
    ptx::lower_registers<kC.producer_registers()>();
    if (threadIdx.x == 0) Loader<kC>(shared, params).run();
    if (threadIdx.x == 32) Scheduler<kC>(shared, params).run();
    if (warp >= 2) spare(warp);
  } else {
    ptx::raise_registers<kC.consumer_registers()>();
    Consumer<kC>(shared, params, warp / 4 - 1).run();
  }
}

/// `Instance` is a type with a `static constexpr ForwardConfig kConfig`: nvcc's host stubs cannot
/// name a kernel whose template argument is a config value.
template <typename Instance>
__global__ void __launch_bounds__(Instance::kConfig.threads(), 1)
    forward_kernel(const __grid_constant__ ForwardParams params) {
  if (params.outcome != nullptr && !is_wanted(params)) return;
  run_roles<Instance::kConfig>(params, [](int /*warp*/) {});
}

}  // namespace magi::sm90
