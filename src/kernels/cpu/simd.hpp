// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

// Vectors of `kBytes` bytes as the compiler's vector extension, so that one text serves every
// instruction set. NOTE: translation units built for a wider instruction set may instantiate only
// templates that carry kBytes: any other inline function could be merged by the linker into code
// that runs on older machines.
namespace magi::cpu {

template <typename Real, int kBytes>
struct Simd {
  static_assert(std::is_same_v<Real, float> || std::is_same_v<Real, double>);
  static constexpr bool kIsFloat = std::is_same_v<Real, float>;
  using Int = std::conditional_t<kIsFloat, std::int32_t, std::int64_t>;
  typedef Real Vec __attribute__((vector_size(kBytes)));
  typedef Int IntVec __attribute__((vector_size(kBytes)));
  static constexpr std::int64_t kLanes = kBytes / static_cast<int>(sizeof(Real));

  static constexpr int kMantissaBits = kIsFloat ? 23 : 52;
  static constexpr Int kExponentBias = kIsFloat ? 127 : 1023;
  static constexpr Real kMaxExponent = kIsFloat ? 128 : 1024;
  static constexpr Real kMinExponent = kIsFloat ? -126 : -1022;
  static constexpr Real kLn2 = static_cast<Real>(0.693147180559945309417232121458176568L);
  /// Adding it leaves the nearest integer in the low bits of the mantissa.
  static constexpr Real kRounder =
      kIsFloat ? static_cast<Real>(12582912.0) : static_cast<Real>(6755399441055744.0);
  /// Taylor terms of 2^r on [-1/2, 1/2] until the next is below a tenth of an ulp.
  static constexpr int kExpDegree = kIsFloat ? 7 : 13;
  /// Levels of Lambert's continued fraction for tanh on [-0.6, 0.6].
  static constexpr int kTanhLevels = kIsFloat ? 5 : 9;

  static Vec load(const Real* from) {
    Vec value;
    __builtin_memcpy(&value, from, sizeof(value));
    return value;
  }
  static void store(Real* to, Vec value) { __builtin_memcpy(to, &value, sizeof(value)); }
  static Vec broadcast(Real value) {
    return [value]<int... lanes>(std::integer_sequence<int, lanes...>) {
      return Vec{((void)lanes, value)...};
    }
    (std::make_integer_sequence<int, static_cast<int>(kLanes)>{});
  }
  static Vec max(Vec a, Vec b) { return a > b ? a : b; }

  static Real reduce_max(Vec value) {
    Real result = value[0];
    for (int lane = 1; lane < kLanes; ++lane) result = value[lane] > result ? value[lane] : result;
    return result;
  }
  static Real reduce_sum(Vec value) {
    for (int half = static_cast<int>(kLanes) / 2; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) value[lane] += value[lane + half];
    }
    return value[0];
  }

  /// ln(2)^k / k!, the k-th Taylor coefficient of 2^r.
  static constexpr Real exp_coefficient(int k) {
    long double value = 1;
    for (int i = 1; i <= k; ++i) value *= 0.693147180559945309417232121458176568L / i;
    return static_cast<Real>(value);
  }
  template <int k>
  static Vec exp_series(Vec r) {
    constexpr Real coefficient = exp_coefficient(k);
    if constexpr (k == kExpDegree) {
      return broadcast(coefficient);
    } else {
      return exp_series<k + 1>(r) * r + coefficient;
    }
  }

  /// 2^x to 1 ulp, of `most` where x is above it; 0 where the result would be subnormal, NaN from
  /// NaN.
  static Vec exp2_up_to(Vec x, Real most) {
    const Vec clamped = x > broadcast(most) ? broadcast(most) : x;
    const Vec shifted = clamped + kRounder;
    const Vec r = clamped - (shifted - kRounder);
    const IntVec n = (IntVec)shifted - (IntVec)broadcast(kRounder);
    const Vec scale = (Vec)((n + kExponentBias) << kMantissaBits);
    const Vec value = exp_series<0>(r) * scale;
    return x < broadcast(kMinExponent) ? Vec{} : value;
  }

  /// The same for any x: +inf above the range.
  static Vec exp2(Vec x) { return exp2_up_to(x, kMaxExponent); }

  /// tanh(x) to 2 ulp: Lambert's continued fraction near 0, 1 - 2 / (e^2|x| + 1) elsewhere.
  static Vec tanh(Vec x) {
    const Vec magnitude = x < Vec{} ? -x : x;
    const Vec square = x * x;
    Vec numerator = broadcast(static_cast<Real>(2 * kTanhLevels + 1));
    Vec denominator = broadcast(1);
    for (int level = kTanhLevels - 1; level >= 0; --level) {
      const Vec next = numerator * static_cast<Real>(2 * level + 1) + square * denominator;
      denominator = numerator;
      numerator = next;
    }
    const Vec near_zero = x * denominator / numerator;
    const Vec tail = static_cast<Real>(1) -
                     static_cast<Real>(2) /
                         (exp2(magnitude * (static_cast<Real>(2) / kLn2)) + static_cast<Real>(1));
    const Vec far = x < Vec{} ? -tail : tail;
    return magnitude < broadcast(static_cast<Real>(0.6)) ? near_zero : far;
  }
};

}  // namespace magi::cpu
