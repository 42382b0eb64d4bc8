// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "kernels/sm90/arguments.hpp"
#include "kernels/sm90/backward/shared.cuh"
#include "kernels/sm90/forward/softmax.cuh"
#include "kernels/tile/descriptor.cuh"
#include "kernels/tile/fragment.cuh"

// Arithmetic on a warpgroup's transposed scores: 64 keys x the rows of the q tile. A thread holds
// two keys and, of each, a quarter of the rows.
namespace magi::sm90 {

/// One value per row of q: those of the rows that a thread holds, with kCount scores in all.
template <int kCount>
struct RowValues {
  float2 pairs[kCount / 4];

  __device__ __forceinline__ void load(const float* values, int first_column) {
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i) {
      pairs[i] = *reinterpret_cast<const float2*>(values + 8 * i + first_column);
    }
  }
  /// Copies each value to all scores of its row, as accumulators for a product.
  __device__ __forceinline__ void spread(float (&x)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      x[i] = x[i + 2] = pairs[i / 4].x;
      x[i + 1] = x[i + 3] = pairs[i / 4].y;
    }
  }
};

/// The lse of two neighbouring rows, if a softcap needs them after the products.
template <bool kHasSoftcap>
__device__ __forceinline__ float2 load_lse(const float* lse_log2, int row) {
  if constexpr (!kHasSoftcap) return make_float2(0.0f, 0.0f);
  return *reinterpret_cast<const float2*>(lse_log2 + row);
}

/// Turns scores into exponents x = exponent_scale * (f(s) + lse_log2), so that p = 2^x. Without a
/// softcap scores already contain lse_log2, as accumulators began with it.
template <bool kHasSoftcap, int kCount>
__device__ __forceinline__ void take_exponents(float (&x)[kCount], const float* lse_log2,
                                               int first_column, const ScoreScale& scale) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const float2 lse = load_lse<kHasSoftcap>(lse_log2, 2 * i + first_column);
#pragma unroll
    for (int j = i; j < i + 4; ++j) {
      if constexpr (kHasSoftcap) x[j] = capped(x[j], scale) + (j % 2 == 0 ? lse.x : lse.y);
      x[j] *= scale.exponent_scale;
    }
  }
}

/// Sets scores that the step's band hides to -infinity; `key_row` is the row of the thread's first
/// key in the k tile.
template <int kCount>
__device__ __forceinline__ void mask_step(float (&x)[kCount], const StepInfo& step, int key_row,
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
  tile::mask_rows<2 * kCount>(x, low, high);
}

template <int kCount>
__device__ __forceinline__ void exponentiate(float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) x[i] = ptx::exp2_approx(x[i]);
}

/// f'(s) / softmax_scale = 1 - tanh^2, from p: tanh = log2(p) / exponent_scale - lse_log2.
__device__ __forceinline__ float softcap_slope(float p, float lse, const ScoreScale& scale) {
  const float tanh = fmaf(ptx::log2_approx(p), ptx::reciprocal_approx(scale.exponent_scale), -lse);
  return fmaxf(fmaf(-tanh, tanh, 1.0f), 0.0f);
}

/// Turns P into dS / softmax_scale = p * (dP - delta) * f'(s) / softmax_scale; `dp` is dP - delta.
template <bool kHasSoftcap, int kCount>
__device__ __forceinline__ void differentiate(float (&p)[kCount], const float (&dp)[kCount],
                                              const float* lse_log2, int first_column,
                                              const ScoreScale& scale) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    if constexpr (kHasSoftcap) {
      const float2 lse = load_lse<kHasSoftcap>(lse_log2, 2 * i + first_column);
#pragma unroll
      for (int j = i; j < i + 4; ++j) {
        p[j] *= dp[j] * softcap_slope(p[j], j % 2 == 0 ? lse.x : lse.y, scale);
      }
      ptx::pin(p);
    } else {
#pragma unroll
      for (int j = i; j < i + 4; ++j) p[j] *= dp[j];
    }
  }
}

/// Turns dP - delta into dS / softmax_scale = p * (dP - delta) * f'(s) / softmax_scale. NOTE: a
/// quarter of p is read from the 16-bit operand of dV: with all of p in float32, 13 registers are
/// missing. With a softcap there are enough, and its slope needs all bits.
template <DType kType, bool kHasSoftcap, int kCount>
__device__ __forceinline__ void differentiate_wide(const float (&p)[kCount],
                                                   const std::uint32_t (&packed)[kCount / 2],
                                                   float (&dp)[kCount], const float* lse_log2,
                                                   int first_column, const ScoreScale& scale) {
  constexpr int kHalves = kHasSoftcap ? 0 : 16;
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const float2 lse = load_lse<kHasSoftcap>(lse_log2, 2 * i + first_column);
#pragma unroll
    for (int j = i; j < i + 4; j += 2) {
      const float2 pair =
          j < kHalves ? ptx::unpack_half2<kType>(packed[j / 2]) : make_float2(p[j], p[j + 1]);
      dp[j] *= pair.x;
      dp[j + 1] *= pair.y;
      if constexpr (kHasSoftcap) {
        dp[j] *= softcap_slope(pair.x, lse.x, scale);
        dp[j + 1] *= softcap_slope(pair.y, lse.y, scale);
      }
    }
    if constexpr (kHasSoftcap) ptx::pin(dp);
  }
}

/// The shared memory address of a thread's first word of packed scores. These are in panels of 64
/// rows of q, with a 128-byte row per key; `key_row` is that of the thread's first key.
__device__ __forceinline__ std::uint32_t first_word(const std::uint8_t* panels, int key_row,
                                                    int first_column) {
  return ptx::shared_address(panels + tile::swizzled_offset(key_row, 0) + 2 * first_column);
}

/// Calls visit(i, address) for each of kPacked words from the thread's first one on, in panels of
/// kKeys keys.
template <int kKeys, int kPacked, typename Visit>
__device__ __forceinline__ void for_each_word(std::uint32_t first, Visit visit) {
  constexpr int kPanel = kKeys * tile::kPanelRowBytes;
#pragma unroll
  for (int c = 0; c < kPacked / 2; ++c) {
    // The swizzle is an exclusive or.
    const std::uint32_t address = (first ^ static_cast<std::uint32_t>(c % 8 << 4)) +
                                  static_cast<std::uint32_t>(c / 8 * kPanel);
    visit(2 * c, address);
    visit(2 * c + 1, address + 8 * tile::kPanelRowBytes);
  }
}

}  // namespace magi::sm90
