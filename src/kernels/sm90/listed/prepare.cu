// SPDX-License-Identifier: Apache-2.0
#include <cub/block/block_reduce.cuh>

#include "cuda/check.hpp"
#include "cuda/ptx/math.cuh"
#include "kernels/sm90/backward/prepare.hpp"
#include "kernels/sm90/global_memory.cuh"
#include "kernels/sm90/listed/prepare.hpp"

namespace magi::sm90 {
namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 16;  // per row, with 8 elements each
constexpr int kRowsPerCta = kThreads / kLanes;

template <DType kType>
__global__ void __launch_bounds__(kThreads) delta_kernel(const ListedRowParams params) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kRowsPerCta + threadIdx.x / kLanes;
  const bool is_row = row < std::int64_t{params.rows_q} * params.heads_q;
  const std::int64_t token = row / params.heads_q;
  const std::int64_t head = row % params.heads_q;
  const int first = static_cast<int>(threadIdx.x) % kLanes * 8;
  float sum = 0.0f;
  for (int d = first; is_row && d < params.dim_v; d += 8 * kLanes) {
    const uint4 out =
        *reinterpret_cast<const uint4*>(row_at<const std::uint16_t>(params.out, token, head) + d);
    const uint4 dout =
        *reinterpret_cast<const uint4*>(row_at<const std::uint16_t>(params.dout, token, head) + d);
    const std::uint32_t a[4] = {out.x, out.y, out.z, out.w};
    const std::uint32_t b[4] = {dout.x, dout.y, dout.z, dout.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = ptx::unpack_half2<kType>(a[i]);
      const float2 y = ptx::unpack_half2<kType>(b[i]);
      // A row without keys has zeros, though its dout may be NaN.
      sum = fmaf(x.x, x.x == 0.0f ? 0.0f : y.x, fmaf(x.y, x.y == 0.0f ? 0.0f : y.y, sum));
    }
  }
#pragma unroll
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
  }
  if (!is_row || first != 0) return;
  const float lse = *row_at<float>(params.lse, token, head);
  const float dlse = params.dlse.data == nullptr ? 0.0f : *row_at<float>(params.dlse, token, head);
  params.delta[row] = fabsf(lse) * kLog2E == INFINITY ? 0.0f : sum - dlse;
}

/// A sink is a key whose value is 0: its gradient through a row is -exp(sink - lse) * delta.
__device__ __forceinline__ float sink_gradient(const ListedRowParams& params, float sink,
                                               std::int64_t token, std::int64_t head) {
  const float lse = *row_at<float>(params.lse, token, head);
  if (fabsf(lse) * kLog2E >= kLargestLse) return 0.0f;
  const std::int64_t row = token * params.heads_q + head;
  return -ptx::exp2_approx((sink - lse) * kLog2E) * params.delta[row];
}

/// Sums gradients of sinks, with one CTA per head and sink.
__global__ void __launch_bounds__(kThreads)
    shared_sink_kernel(const ListedRowParams params, const SinkRows sinks, float* dsink,
                       std::int64_t dsink_stride) {
  using Reduce = cub::BlockReduce<float, kThreads>;
  __shared__ typename Reduce::TempStorage storage;
  const auto head = static_cast<std::int64_t>(blockIdx.x);
  const auto index = static_cast<std::int64_t>(blockIdx.y);
  const float sink = sinks.data[index * sinks.sink_stride + head];
  float sum = 0.0f;
#pragma unroll 1
  for (auto token = static_cast<std::int64_t>(threadIdx.x); token < params.rows_q;
       token += kThreads) {
    sum += sink_gradient(params, sink, token, head);
  }
  sum = Reduce(storage).Sum(sum);
  if (threadIdx.x == 0) dsink[index * dsink_stride + head] = sum;
}

__global__ void __launch_bounds__(kThreads)
    row_sink_kernel(const ListedRowParams params, const SinkRows sinks, float* dsink,
                    std::int64_t dsink_row_stride, std::int64_t dsink_stride) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= std::int64_t{params.rows_q} * params.heads_q) return;
  const std::int64_t token = row / params.heads_q;
  const std::int64_t head = row % params.heads_q;
  for (int i = 0; i < sinks.count; ++i) {
    const float sink = sinks.data[token * sinks.row_stride + i * sinks.sink_stride + head];
    dsink[token * dsink_row_stride + i * dsink_stride + head] =
        sink_gradient(params, sink, token, head);
  }
}

unsigned num_ctas(const ListedRowParams& params, int rows_per_cta) {
  const std::int64_t rows = std::int64_t{params.rows_q} * params.heads_q;
  return static_cast<unsigned>((rows + rows_per_cta - 1) / rows_per_cta);
}

}  // namespace

void enqueue_listed_delta(const ListedRowParams& params, DType type, cudaStream_t stream) {
  const auto kernel =
      type == DType::BFloat16 ? delta_kernel<DType::BFloat16> : delta_kernel<DType::Float16>;
  kernel<<<num_ctas(params, kRowsPerCta), kThreads, 0, stream>>>(params);
  cuda_check(cudaGetLastError(), "delta_kernel");
}

void enqueue_listed_sink_gradient(const ListedRowParams& params, const SinkRows& sink,
                                  const SinkRows& dsink, cudaStream_t stream) {
  auto* target = const_cast<float*>(dsink.data);
  // Rows may share their logits in memory and still have a gradient each.
  if (dsink.row_stride == 0) {
    const dim3 grid(static_cast<unsigned>(params.heads_q), static_cast<unsigned>(sink.count));
    shared_sink_kernel<<<grid, kThreads, 0, stream>>>(params, sink, target, dsink.sink_stride);
  } else if (params.rows_q > 0) {
    row_sink_kernel<<<num_ctas(params, kThreads), kThreads, 0, stream>>>(
        params, sink, target, dsink.row_stride, dsink.sink_stride);
  }
  cuda_check(cudaGetLastError(), "sink gradient kernel");
}

}  // namespace magi::sm90
