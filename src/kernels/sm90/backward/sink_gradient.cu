// SPDX-License-Identifier: Apache-2.0
#include "cuda/check.hpp"
#include "cuda/ptx/math.cuh"
#include "kernels/sm90/backward/packed_rows.cuh"

// A sink is a key whose value is 0: its gradient through a row is exp(sink - lse) * delta, where
// lse_log2 and delta come negated from prepare.cu.
namespace magi::sm90 {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxSinks = 8;

/// The share of a sink in its row's softmax, from both in base 2, that of the row negated; 0 in
/// rows that see no key or whose lse reaches kLargestLse.
__device__ __forceinline__ float sink_weight(float sink, float lse) {
  return lse < -2.0f * kLargestLse ? 0.0f : ptx::exp2_approx(sink + lse);
}

__device__ __forceinline__ void put(float& target, float gradient, bool is_adding) {
  target = is_adding ? target + gradient : gradient;
}

/// One CTA per head; thread t sums tokens t, t + kThreads, ..., then warps, then the warps' sums in
/// order.
__global__ void __launch_bounds__(kThreads) shared_sink_kernel(const SinkGradientParams params) {
  __shared__ float warp_sums[kMaxSinks][kWarps];
  const int head = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  float sinks2[kMaxSinks];
  float sums[kMaxSinks];
#pragma unroll
  for (int s = 0; s < kMaxSinks; ++s) {
    sums[s] = 0.0f;
    sinks2[s] = s < params.sink.count
                    ? params.sink.data[s * params.sink.sink_stride + head] * kLog2E
                    : 0.0f;
  }
  for (int token = thread; token < params.packed.rows_q; token += kThreads) {
    const std::int64_t at = place_of(params.packed, token, head);
    const float lse2 = params.lse_log2[at] * params.exponent_scale;
    const float delta = params.delta[at];
#pragma unroll
    for (int s = 0; s < kMaxSinks; ++s) sums[s] += sink_weight(sinks2[s], lse2) * delta;
  }
#pragma unroll
  for (int s = 0; s < kMaxSinks; ++s) {
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      sums[s] += __shfl_xor_sync(0xffffffffu, sums[s], lanes);
    }
    if (thread % 32 == 0) warp_sums[s][thread / 32] = sums[s];
  }
  __syncthreads();
  if (thread >= params.sink.count) return;
  float sum = 0.0f;
  for (int warp = 0; warp < kWarps; ++warp) sum += warp_sums[thread][warp];
  put(params.dsink[thread * params.sink_stride + head], sum, params.is_adding);
}

__global__ void __launch_bounds__(kThreads) row_sink_kernel(const SinkGradientParams params) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const auto token = static_cast<int>(i / params.packed.heads_q);
  const auto head = static_cast<int>(i % params.packed.heads_q);
  if (token >= params.packed.rows_q) return;
  const std::int64_t at = place_of(params.packed, token, head);
  const float lse2 = params.lse_log2[at] * params.exponent_scale;
  const float delta = params.delta[at];
  for (int s = 0; s < params.sink.count; ++s) {
    const float sink =
        params.sink.data[token * params.sink.row_stride + s * params.sink.sink_stride + head];
    put(params.dsink[token * params.row_stride + s * params.sink_stride + head],
        sink_weight(sink * kLog2E, lse2) * delta, params.is_adding);
  }
}

}  // namespace

void enqueue_sink_gradient(const SinkGradientParams& params, cudaStream_t stream) {
  if (params.row_stride == 0) {
    shared_sink_kernel<<<params.packed.heads_q, kThreads, 0, stream>>>(params);
  } else {
    const std::int64_t rows = std::int64_t{params.packed.rows_q} * params.packed.heads_q;
    if (rows == 0) return;
    const auto num_ctas = static_cast<unsigned>((rows - 1) / kThreads + 1);
    row_sink_kernel<<<num_ctas, kThreads, 0, stream>>>(params);
  }
  cuda_check(cudaGetLastError(), "sink gradient kernel");
}

}  // namespace magi::sm90
