// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/backward/consumer.cuh"
#include "kernels/sm90/backward/dq_writer.cuh"
#include "kernels/sm90/backward/producer.cuh"

namespace magi::sm90 {

template <BackwardConfig kC>
__device__ __forceinline__ void init_barriers(BackwardStorage<kC>& shared) {
  constexpr int kConsumerWarps = 4 * kC.consumers;
  for (int stage = 0; stage < kInfoStages; ++stage) ptx::mbarrier_init(shared.step_full[stage], 1);
  for (int stage = 0; stage < kScoreStages; ++stage) {
    ptx::mbarrier_init(shared.scores_full[stage], kConsumerWarps);
  }
  for (int stage = 0; stage < kC.q_stages; ++stage) {
    ptx::mbarrier_init(shared.q_full[stage], 1);
    ptx::mbarrier_init(shared.q_empty[stage], kConsumerWarps);
  }
  for (int stage = 0; stage < kC.dout_stages; ++stage) {
    ptx::mbarrier_init(shared.dout_full[stage], 1);
    ptx::mbarrier_init(shared.dout_empty[stage], kConsumerWarps);
  }
  ptx::mbarrier_init(shared.k_full, 1);
  ptx::mbarrier_init(shared.k_empty, kConsumerWarps);
  ptx::mbarrier_init(shared.v_full, 1);
  ptx::mbarrier_init(shared.v_empty, kConsumerWarps);
  ptx::fence_mbarrier_init();
}

/// `Instance` is a type with a `static constexpr BackwardConfig kConfig`: nvcc's host stubs cannot
/// name a kernel whose template argument is a config value.
template <typename Instance>
__global__ void __launch_bounds__(Instance::kConfig.threads(), 1)
    backward_kernel(const __grid_constant__ BackwardParams params) {
  constexpr BackwardConfig kC = Instance::kConfig;
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
  if (warp < 4) {
    ptx::lower_registers<kC.producer_registers>();
    if (threadIdx.x == 0) BackwardProducer<kC>(shared, params).run();
    if (params.is_ordered && warp >= 1 && warp <= kC.consumers) {
      DqWriter<kC>(shared, params, warp - 1).run();
    }
  } else {
    ptx::raise_registers<kC.consumer_registers>();
    BackwardConsumer<kC>(shared, params, warp / 4 - 1).run();
  }
}

}  // namespace magi::sm90
