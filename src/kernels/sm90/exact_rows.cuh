// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <numbers>

#include "cuda/ptx/math.cuh"
#include "kernels/sm90/arguments.hpp"

// A warp's rows of 16-bit elements and their scores in float64, for rows whose lse is large
// (large_lse). Products of 16-bit numbers are exact in float64, and sums of them as good as exact:
// so scores do not depend on who computes them.
namespace magi::sm90 {

inline constexpr unsigned kFullWarp = 0xffffffffu;

template <typename Value>
__device__ __forceinline__ Value sum_of_warp(Value value) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(kFullWarp, value, lanes);
  return value;
}

__device__ __forceinline__ double max_of_warp(double value) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    value = fmax(value, __shfl_xor_sync(kFullWarp, value, lanes));
  }
  return value;
}

/// A float64 product that the compiler may not fuse with a sum: a score or sink of 1e30 is to have
/// the same bits wherever it is met, or its rounding alone makes or breaks its weight.
__device__ __forceinline__ double product_of(double a, double b) { return __dmul_rn(a, b); }

__device__ __forceinline__ double in_base_2(float logarithm) {
  return product_of(double{logarithm}, std::numbers::log2e);
}

/// 2^x for x up to 0, 1 above; NaN of NaN.
__device__ __forceinline__ float weight_of(double exponent) {
  return ptx::exp2_approx(exponent > 0.0 ? 0.0f : static_cast<float>(exponent));
}

inline constexpr int kRunDims = 4 * 32;  ///< of a warp's run of a row, four elements a lane

/// One lane's elements of a row: four of each run.
template <int kRuns>
struct Elements {
  float at[4 * kRuns] = {};

  __device__ __forceinline__ void add(float factor, const Elements& other) {
#pragma unroll
    for (int i = 0; i < 4 * kRuns; ++i) at[i] = fmaf(factor, other.at[i], at[i]);
  }
};

/// The dim of a lane's first element of a run.
__device__ __forceinline__ int first_dim(int run, int lane) { return run * kRunDims + 4 * lane; }

__device__ __forceinline__ void set_four(float* four, float2 first, float2 second) {
  four[0] = first.x;
  four[1] = first.y;
  four[2] = second.x;
  four[3] = second.y;
}

/// `dim`: of the row; elements behind it are 0.
template <DType kType, int kRuns>
__device__ __forceinline__ Elements<kRuns> load_row(const std::uint16_t* row, std::int32_t dim,
                                                    int lane) {
  Elements<kRuns> elements;
#pragma unroll
  for (int run = 0; run < kRuns; ++run) {
    if (first_dim(run, lane) >= dim) continue;
    const uint2 raw = *reinterpret_cast<const uint2*>(row + first_dim(run, lane));
    set_four(elements.at + 4 * run, ptx::unpack_half2<kType>(raw.x),
             ptx::unpack_half2<kType>(raw.y));
  }
  return elements;
}

template <int kRuns>
__device__ __forceinline__ double exact_dot(const Elements<kRuns>& a, const Elements<kRuns>& b) {
  double sum = 0.0;
#pragma unroll
  for (int i = 0; i < 4 * kRuns; ++i) sum = fma(double{a.at[i]}, double{b.at[i]}, sum);
  return sum_of_warp(sum);
}

template <int kRuns>
__device__ __forceinline__ float dot(const Elements<kRuns>& a, const Elements<kRuns>& b) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4 * kRuns; ++i) sum = fmaf(a.at[i], b.at[i], sum);
  return sum_of_warp(sum);
}

/// A score in base 2, and the softcap's slope there.
struct Score {
  double exponent;
  float slope = 1.0f;
};

__device__ __forceinline__ Score exact_score(const ScoreScale& scale, double product) {
  if (scale.cap_scale == 0.0f) return {product_of(product, scale.exponent_scale)};
  const double capped = tanh(product * scale.cap_scale);
  return {product_of(capped, scale.exponent_scale), static_cast<float>(fma(-capped, capped, 1.0))};
}

/// How a row is put: as float32 or of the 16-bit type, over what is there or added to it.
struct RowPut {
  bool is_float;
  bool is_adding;
};

/// Puts four elements times `factor`.
template <DType kType>
__device__ __forceinline__ void put_four(std::uint8_t* target, RowPut how, const float* values,
                                         float factor) {
  float sum[4] = {};
  auto* wide = reinterpret_cast<float4*>(target);
  auto* narrow = reinterpret_cast<uint2*>(target);
  if (how.is_adding && how.is_float) {
    const float4 before = *wide;
    set_four(sum, {before.x, before.y}, {before.z, before.w});
  } else if (how.is_adding) {
    const uint2 before = *narrow;
    set_four(sum, ptx::unpack_half2<kType>(before.x), ptx::unpack_half2<kType>(before.y));
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) sum[i] = fmaf(factor, values[i], sum[i]);
  if (how.is_float) {
    *wide = make_float4(sum[0], sum[1], sum[2], sum[3]);
  } else {
    *narrow =
        make_uint2(ptx::pack_half2<kType>(sum[0], sum[1]), ptx::pack_half2<kType>(sum[2], sum[3]));
  }
}

/// Puts a row of `dim` elements times `factor`.
template <DType kType, int kRuns>
__device__ __forceinline__ void put_row(std::uint8_t* row, RowPut how, std::int32_t dim, int lane,
                                        const Elements<kRuns>& values, float factor) {
#pragma unroll
  for (int run = 0; run < kRuns; ++run) {
    const int first = first_dim(run, lane);
    if (first >= dim) continue;
    put_four<kType>(row + first * (how.is_float ? 4 : 2), how, values.at + 4 * run, factor);
  }
}

}  // namespace magi::sm90
