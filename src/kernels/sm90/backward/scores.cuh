// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/arguments.hpp"
#include "kernels/sm90/backward/shared.cuh"
#include "kernels/sm90/forward/softmax.cuh"
#include "kernels/tile/fragment.cuh"

// Arithmetic on a warpgroup's transposed scores: 64 keys x 64 rows of the q tile. A thread holds
// two keys and, of each, 16 rows of q.
namespace magi::sm90 {

inline constexpr int kScoreElements = 32;
using Scores = float[kScoreElements];

/// Calls visit(first element of the pair in the upper key row, value pair) for the 8 pairs of rows
/// of q that a thread holds; `values` is one float per row.
template <typename Visit>
__device__ __forceinline__ void for_each_row_pair(const float* values, int first_column,
                                                  Visit visit) {
#pragma unroll
  for (int c = 0; c < kScoreElements / 4; ++c) {
    visit(4 * c, *reinterpret_cast<const float2*>(values + 8 * c + first_column));
  }
}

/// f(s) of ScoreScale.
template <bool kHasSoftcap>
__device__ __forceinline__ float capped(float score, const ScoreScale& scale) {
  return kHasSoftcap ? tanh_of(score * scale.cap_scale) : score;
}

/// Scores become x = exponent_scale * f(s) - lse2, so that p = 2^x.
template <bool kHasSoftcap>
__device__ __forceinline__ void take_exponents(Scores& x, const float* lse2, int first_column,
                                               const ScoreScale& scale) {
  for_each_row_pair(lse2, first_column, [&](int i, float2 level) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float score = capped<kHasSoftcap>(x[i + j], scale);
      x[i + j] = fmaf(score, scale.exponent_scale, j % 2 == 0 ? -level.x : -level.y);
    }
  });
}

/// Sets what the step's band hides to -infinity; `key_row` is that of the thread's first key in the
/// k tile.
__device__ __forceinline__ void mask_step(Scores& x, const StepInfo& step, int key_row,
                                          int first_column, int packed_shift) {
  int low[tile::kRowsPerThread];
  int high[tile::kRowsPerThread];
#pragma unroll
  for (int row = 0; row < tile::kRowsPerThread; ++row) {
    const int key = key_row + 8 * row;
    const bool is_inside = key >= step.key_low && key < step.key_high;
    const int begin = max(step.q_low, key + step.low) << packed_shift;
    const int end = is_inside ? min(step.q_high, key + step.high) << packed_shift : -1;
    low[row] = begin - first_column;
    high[row] = end - first_column;
  }
  tile::mask_rows<64>(x, low, high);
}

__device__ __forceinline__ void exponentiate(const Scores& x, Scores& p) {
#pragma unroll
  for (int i = 0; i < kScoreElements; ++i) p[i] = ptx::exp2_approx(x[i]);
}

/// f'(s) / softmax_scale = 1 - tanh^2, from p: tanh = (log2(p) + lse2) / exponent_scale.
__device__ __forceinline__ float softcap_slope(float p, float level, const ScoreScale& scale) {
  const float bend = (ptx::log2_approx(p) + level) * ptx::reciprocal_approx(scale.exponent_scale);
  return fmaxf(fmaf(-bend, bend, 1.0f), 0.0f);
}

/// P becomes dS / softmax_scale = p * (dP - delta) * f'(s) / softmax_scale.
template <bool kHasSoftcap>
__device__ __forceinline__ void differentiate(Scores& p, const Scores& dp, const float* delta,
                                              const float* lse2, int first_column,
                                              const ScoreScale& scale) {
  for_each_row_pair(delta, first_column, [&](int i, float2 offset) {
    if constexpr (kHasSoftcap) {
      const float2 level = *reinterpret_cast<const float2*>(lse2 + 2 * i + first_column);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float slope = softcap_slope(p[i + j], j % 2 == 0 ? level.x : level.y, scale);
        p[i + j] *= slope * (dp[i + j] - (j % 2 == 0 ? offset.x : offset.y));
      }
      ptx::pin(p);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) p[i + j] *= dp[i + j] - (j % 2 == 0 ? offset.x : offset.y);
    }
  });
}

}  // namespace magi::sm90
