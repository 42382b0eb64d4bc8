// SPDX-License-Identifier: Apache-2.0
#include "cuda/ptx/system.cuh"
#include "gpu/warp_push.hpp"
#include "kernels/sm90/forward/launch.cuh"

namespace magi::bench {

using sm90::ForwardConfig;
using sm90::ForwardParams;

/// As the library's.
struct PushingInstance {
  static constexpr ForwardConfig kConfig{};
};

namespace {

constexpr int kLoadsAhead = 4;  ///< more do not fit into 40 registers
constexpr int kLineBytes = 512;
constexpr int kLinesOfTensor = kRowBytes / kLineBytes;

/// By a warp. `num_all`: warps that push, in all.
__device__ __forceinline__ void push_by_warp(const WarpPush& push, unsigned num_all) {
  const auto lane = static_cast<int>(threadIdx.x) % 32;
  for (bool is_first = true;; is_first = false) {
    unsigned index = 0;
    if (lane == 0) index = atomicAdd(push.ticket, 1U);
    index = __shfl_sync(~0U, index, 0);
    if (is_first && index == 0 && lane == 0) *push.begin_time = ptx::global_time_ns();
    if (index >= static_cast<unsigned>(push.num_tasks)) break;
    const comm::PushTask task = push.tasks[index];
    const int num_lines = task.num_rows * 2 * kLinesOfTensor;
    std::byte* to = push.to + std::int64_t{task.remote_row} * 2 * kRowBytes + lane * 16;
    for (int first = 0; first < num_lines; first += kLoadsAhead) {
      static_assert(kLinesOfTensor == kLoadsAhead, "lines of one tensor's row at a time");
      const std::byte* tensor = (first / kLinesOfTensor) % 2 == 0 ? push.k : push.v;
      const std::int64_t row = task.local_row + first / (2 * kLinesOfTensor);
      const auto* from = reinterpret_cast<const uint4*>(tensor + row * kRowBytes + lane * 16);
      uint4 held[kLoadsAhead];
#pragma unroll
      for (int i = 0; i < kLoadsAhead; ++i) held[i] = from[i * kLineBytes / 16];
      auto* target = reinterpret_cast<uint4*>(to + first * kLineBytes);
#pragma unroll
      for (int i = 0; i < kLoadsAhead; ++i) target[i * kLineBytes / 16] = held[i];
    }
  }
  __syncwarp();
  if (lane != 0) return;
  ptx::fence_system();
  if (atomicAdd(push.num_ended, 1U) + 1 != num_all) return;
  ptx::fence_system();
  *push.num_ended = 0;
  *push.ticket = 0;
  ptx::store_system(push.arrived, push.number);
  *push.end_time = ptx::global_time_ns();
}

__global__ __launch_bounds__(32) void warp_push_kernel(const __grid_constant__ WarpPush push) {
  push_by_warp(push, gridDim.x);
}

template <typename Instance>
__global__ void __launch_bounds__(Instance::kConfig.threads(), 1)
    pushing_forward_kernel(const __grid_constant__ ForwardParams params,
                           const __grid_constant__ WarpPush push) {
  sm90::run_roles<Instance::kConfig>(params, [&](int warp) {
    if (warp - 2 < push.num_warps) push_by_warp(push, gridDim.x * push.num_warps);
  });
}

WarpPush next_push;  // an instance is launched with parameters of the forward alone

void launch_pushing_forward(const ForwardParams& params, int num_ctas, cudaStream_t stream) {
  constexpr ForwardConfig kC = PushingInstance::kConfig;
  const int bytes =
      sm90::grant_storage<sm90::SharedStorage<kC>, pushing_forward_kernel<PushingInstance>>();
  pushing_forward_kernel<PushingInstance>
      <<<num_ctas, kC.threads(), bytes, stream>>>(params, next_push);
  cuda_check(cudaGetLastError(), "pushing_forward_kernel");
}

__global__ __launch_bounds__(1) void gate_kernel(const std::int32_t* word) {
  constexpr std::uint64_t kLimitNs = 50'000'000;
  const std::uint64_t begin = ptx::global_time_ns();
  while (ptx::load_acquire_system(word) == 0 && ptx::global_time_ns() - begin < kLimitNs) {
  }
}

}  // namespace

void launch_warp_push(const WarpPush& push, int num_ctas, cudaStream_t stream) {
  warp_push_kernel<<<num_ctas, 32, 0, stream>>>(push);
  cuda_check(cudaGetLastError(), "warp_push_kernel");
}

sm90::ForwardInstance pushing_forward() {
  return {PushingInstance::kConfig, launch_pushing_forward};
}

void set_push(const WarpPush& push) { next_push = push; }

void launch_gate(const std::int32_t* word, cudaStream_t stream) {
  gate_kernel<<<1, 1, 0, stream>>>(word);
  cuda_check(cudaGetLastError(), "gate_kernel");
}

}  // namespace magi::bench
