// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "cuda/launch.cuh"
#include "cuda/ptx/order.cuh"
#include "kernels/sm90/backward/void_gradients.hpp"

namespace magi::sm90 {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kCtas = 256;

__device__ __forceinline__ void fill(const PoisonedRows& target) {
  const StridedRows& rows = target.rows;
  const std::int64_t count = target.num_rows * target.heads * target.dim;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t head = i / target.dim % target.heads;
    const std::int64_t row = i / target.dim / target.heads;
    const std::int64_t at = row * rows.row_stride + head * rows.head_stride + i % target.dim;
    if (rows.is_float()) {
      static_cast<float*>(rows.data)[at] = NAN;
    } else {
      static_cast<std::uint16_t*>(rows.data)[at] = 0x7fff;  // NaN in both types of 16 bits
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    void_gradients_kernel(const __grid_constant__ VoidParams params) {
  ptx::await_kernels_before();
  if (params.outcome->is_overflowing == 0) return;
  for (const PoisonedRows& target : params.targets) fill(target);
}

}  // namespace

void enqueue_void_gradients(const VoidParams& params, cudaStream_t stream) {
  launch_ahead(void_gradients_kernel, kCtas, kThreads, 0, params, stream);
}

}  // namespace magi::sm90
