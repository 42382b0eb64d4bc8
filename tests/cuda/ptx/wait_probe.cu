// SPDX-License-Identifier: Apache-2.0
#include "cuda/check.hpp"
#include "cuda/memory.hpp"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/order.cuh"
#include "cuda/ptx/wait_probe.hpp"

namespace magi::probe {
namespace {

__global__ void __launch_bounds__(32) semaphore_kernel(const unsigned* semaphore) {
  if (threadIdx.x == 0) ptx::wait_semaphore(semaphore, 3);
}

__global__ void __launch_bounds__(64) barrier_kernel() {
  __shared__ ptx::Mbarrier barrier;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(barrier, 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x >= 32) ptx::mbarrier_wait(barrier, 0);
}

}  // namespace

cudaError_t wait_for_semaphore_sync(unsigned held) {
  const DeviceBuffer semaphore(sizeof(held));
  cuda_check(cudaMemcpy(semaphore.data(), &held, sizeof(held), cudaMemcpyHostToDevice),
             "cudaMemcpy");
  semaphore_kernel<<<1, 32>>>(static_cast<const unsigned*>(semaphore.data()));
  return cudaDeviceSynchronize();
}

cudaError_t wait_for_barrier_sync() {
  barrier_kernel<<<1, 64>>>();
  return cudaDeviceSynchronize();
}

}  // namespace magi::probe
