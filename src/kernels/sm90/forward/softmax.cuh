// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/forward/config.hpp"
#include "kernels/sm90/forward/params.hpp"
#include "kernels/tile/fragment.cuh"

namespace magi::sm90 {

/// Finite, below any score: a row that has met no visible key keeps it, and no comparison with
/// -infinity is needed on the way (exp2 of a masked score is 0 whatever the maximum).
inline constexpr float kNoScore = -1e30f;

/// tanh, to about 1e-7 and for small x to about 1e-7 of x (its series): it is multiplied by the
/// cap, which may be large beside the scores. The hardware's own is too coarse.
__device__ __forceinline__ float tanh_of(float x) {
  const float square = x * x;
  if (square < 0.004f) return x * fmaf(square, fmaf(square, 2.0f / 15.0f, -1.0f / 3.0f), 1.0f);
  return 1.0f - 2.0f * ptx::reciprocal_approx(1.0f + ptx::exp2_approx(2.0f * kLog2E * x));
}

/// f(s) of ScoreScale with a softcap: the capped score over the softcap.
__device__ __forceinline__ float capped(float score, const ScoreScale& scale) {
  return tanh_of(score * scale.cap_scale);
}

/// f(s) of ScoreScale, with a softcap or without; masked scores stay masked.
template <ForwardConfig kC>
__device__ __forceinline__ float capped(float score, const ScoreScale& scale) {
  if constexpr (!kC.is_general()) return score;
  if (scale.cap_scale == 0.0f || score == -INFINITY) return score;
  return capped(score, scale);
}

/// Online softmax of a thread's two rows (Milakov and Gimelshein, arXiv 1805.02867). The base of
/// the exponentials is a recent maximum rather than the latest: it moves only when a score passes
/// it by more than 2^kSlack, so that most tiles neither reduce over lanes nor rescale O. P then
/// reaches 2^kSlack, which the float32 sums and both 16-bit types hold.
template <ForwardConfig kC>
struct RowState {
  static constexpr float kSlack = 8.0f;

  float base[tile::kRowsPerThread] = {kNoScore, kNoScore};  ///< raw score, shared by a row's lanes
  float sum[tile::kRowsPerThread] = {0.0f, 0.0f};           ///< over this thread's columns
  float rescale[tile::kRowsPerThread];  ///< factor of what was accumulated before the base moved
  /// Maxima over this thread's columns, raw scores; only general kernels keep them.
  float top[tile::kRowsPerThread] = {kNoScore, kNoScore};

  /// f(base) in the exponent's unit.
  __device__ __forceinline__ float scaled_base(int row, const ScoreScale& scale) const {
    return capped<kC>(base[row], scale) * scale.exponent_scale;
  }

  /// Raises the bases by the scores' maxima. Returns true, in all lanes of the warp, where a base
  /// moved: then O must be rescaled before the tile's P V is added.
  template <int kColumns, int kCount>
  __device__ __forceinline__ bool raise_base(const float (&scores)[kCount],
                                             const ScoreScale& scale) {
    bool is_passed = false;
    float tile_top[tile::kRowsPerThread];
#pragma unroll
    for (int row = 0; row < tile::kRowsPerThread; ++row) {
      tile_top[row] = max_of_row<kColumns>(scores, row);
      if constexpr (kC.is_general()) top[row] = fmaxf(top[row], tile_top[row]);
      is_passed |= tile_top[row] > base[row] + scale.slack;
    }
    if (!__any_sync(0xffffffffu, is_passed)) return false;
#pragma unroll
    for (int row = 0; row < tile::kRowsPerThread; ++row) {
      const float before = capped<kC>(base[row], scale);
      base[row] = fmaxf(base[row], tile::max_over_row(tile_top[row]));
      // The difference first: fused into a product, the rounding of a huge base would survive.
      rescale[row] =
          ptx::exp2_approx((before - capped<kC>(base[row], scale)) * scale.exponent_scale);
      sum[row] *= rescale[row];
    }
    return true;
  }

  /// Replaces scores by p = exp2(exponent_scale * (f(s) - f(base))).
  template <int kColumns, int kCount>
  __device__ __forceinline__ void exponentiate(float (&scores)[kCount], const ScoreScale& scale) {
    const float low[tile::kRowsPerThread] = {scaled_base(0, scale), scaled_base(1, scale)};
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) {
      const int row = (i / 2) % 2;
      const float score = capped<kC>(scores[i], scale);
      scores[i] = ptx::exp2_approx(fmaf(score, scale.exponent_scale, -low[row]));
      sum[row] += scores[i];
    }
  }

  /// The highest raw score of a row, which only general kernels know.
  __device__ __forceinline__ float top_of_row(int row) const {
    return kC.is_general() ? tile::max_over_row(top[row]) : kNoScore;
  }

  template <int kCount>
  __device__ __forceinline__ void rescale_rows(float (&values)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] *= rescale[(i / 2) % 2];
  }

 private:
  /// The maximum of one of the thread's rows, in four chains whose comparisons do not wait for each
  /// other.
  template <int kColumns, int kCount>
  __device__ __forceinline__ static float max_of_row(const float (&scores)[kCount], int row) {
    constexpr int kChains = 4;
    float chain[kChains];
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) {
      const float score = scores[(i / 2) * 4 + row * 2 + i % 2];
      chain[i % kChains] = i < kChains ? score : fmaxf(chain[i % kChains], score);
    }
    return fmaxf(fmaxf(chain[0], chain[1]), fmaxf(chain[2], chain[3]));
  }
};

}  // namespace magi::sm90
