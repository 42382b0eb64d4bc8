// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/math.cuh"
#include "kernels/sm90/arguments.hpp"
#include "kernels/sm90/forward/shared.cuh"

namespace magi::sm90 {

/// log2(2^a + 2^b); -infinity stands for nothing, +infinity for more than all else.
__device__ __forceinline__ float log2_add(float a, float b) {
  const float top = fmaxf(a, b);
  if (fabsf(top) == INFINITY) return top;
  return top + ptx::log2_approx(ptx::exp2_approx(a - top) + ptx::exp2_approx(b - top));
}

/// The share of `part` in `total`, both log2; nothing has no share.
__device__ __forceinline__ float share(float part, float total) {
  return part == -INFINITY ? 0.0f : ptx::exp2_approx(part - total);
}

/// The same where a sink may have made both infinite: then the share is all.
__device__ __forceinline__ float share_beside_sink(float part, float total) {
  const float difference = part == total ? 0.0f : part - total;
  return part == -INFINITY ? 0.0f : ptx::exp2_approx(difference);
}

/// One row on its way to lse and out.
struct RowResult {
  float log_sum = -INFINITY;  ///< log2 of the denominator
  RowWeights weights = {0.0f, 0.0f};
};

/// Adds the sinks of a row and head to the denominator.
__device__ __forceinline__ void add_sinks(RowResult& result, const SinkRows& sink,
                                          std::int64_t token, int head) {
  const float* sinks = sink.data + token * sink.row_stride + head;
  for (int i = 0; i < sink.count; ++i) {
    const float total = log2_add(result.log_sum, sinks[i * sink.sink_stride] * kLog2E);
    result.weights.weight *= share_beside_sink(result.log_sum, total);
    result.log_sum = total;
  }
}

/// Merges an earlier result; `earlier` is the log2 of its denominator.
__device__ __forceinline__ void merge_earlier(RowResult& result, float earlier) {
  const float total = log2_add(result.log_sum, earlier);
  result.weights.weight *= share_beside_sink(result.log_sum, total);
  result.weights.earlier_weight = share_beside_sink(earlier, total);
  result.log_sum = total;
}

}  // namespace magi::sm90
