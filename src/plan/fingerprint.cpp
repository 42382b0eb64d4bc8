// SPDX-License-Identifier: Apache-2.0
#include "plan/fingerprint.hpp"

#include <algorithm>

namespace magi::planner {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr std::uint64_t kPrime = (std::uint64_t{1} << 61) - 1;
constexpr std::uint64_t kX = 0x0f3a5b1c9d7e2468u % kPrime;
constexpr std::uint64_t kY = 0x1b9e4d7a635c8f02u % kPrime;

constexpr std::uint64_t add(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t sum = a + b;
  return sum >= kPrime ? sum - kPrime : sum;
}
constexpr std::uint64_t subtract(std::uint64_t a, std::uint64_t b) { return add(a, kPrime - b); }

constexpr std::uint64_t multiply(std::uint64_t a, std::uint64_t b) {
  const Wide product = static_cast<Wide>(a) * b;
  return add(static_cast<std::uint64_t>(product) & kPrime,
             static_cast<std::uint64_t>(product >> 61));
}

constexpr std::uint64_t power(std::uint64_t base, std::uint64_t exponent) {
  std::uint64_t result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result = multiply(result, base);
    base = multiply(base, base);
  }
  return result;
}

/// 1 / a (Fermat).
constexpr std::uint64_t inverse(std::uint64_t a) { return power(a, kPrime - 2); }

constexpr std::uint64_t kXY = multiply(kX, kY);
constexpr std::uint64_t kInverseX1 = inverse(kX - 1);
constexpr std::uint64_t kInverseY1 = inverse(kY - 1);
constexpr std::uint64_t kInverseXY1 = inverse(kXY - 1);

std::uint64_t power_of(std::uint64_t base, std::int64_t exponent) {
  return power(base, static_cast<std::uint64_t>(exponent));
}

/// Sum of X^i Y^edge(i) over rows [q0, q1), where edge(i) = i + d while i < bend, then `flat`.
/// For the lower edge the order is the other way round; both are sums of two straight parts.
std::uint64_t sloped_part(std::int64_t begin, std::int64_t end, std::int64_t d) {
  if (begin >= end) return 0;
  const std::uint64_t first = multiply(power_of(kX, begin), power_of(kY, begin + d));
  const std::uint64_t series = multiply(subtract(power_of(kXY, end - begin), 1), kInverseXY1);
  return multiply(first, series);
}

std::uint64_t flat_part(std::int64_t begin, std::int64_t end, std::int64_t key) {
  if (begin >= end) return 0;
  const std::uint64_t series = multiply(subtract(power_of(kX, end - begin), 1), kInverseX1);
  return multiply(multiply(power_of(kX, begin), power_of(kY, key)), series);
}

}  // namespace

std::uint64_t add_fingerprints(std::uint64_t a, std::uint64_t b) { return add(a, b); }

std::uint64_t pair_fingerprint(const BandSlice& slice) {
  const BandSlice s = shrink(slice);
  if (s.q0 == s.q1) return 0;
  // Every row of a shrunk slice sees [low(i), high(i)): the inner sum is
  // (Y^high - Y^low) / (Y - 1), where high = i + d_max + 1 up to a bend, then k1, and
  // low = k0 up to a bend, then i + d_min.
  const std::int64_t high_bend =
      std::clamp<std::int64_t>(std::int64_t{s.k1} - s.d_max - 1, s.q0, s.q1);
  const std::int64_t low_bend = std::clamp<std::int64_t>(std::int64_t{s.k0} - s.d_min, s.q0, s.q1);
  const std::uint64_t high = add(sloped_part(s.q0, high_bend, std::int64_t{s.d_max} + 1),
                                 flat_part(high_bend, s.q1, s.k1));
  const std::uint64_t low =
      add(flat_part(s.q0, low_bend, s.k0), sloped_part(low_bend, s.q1, s.d_min));
  return multiply(subtract(high, low), kInverseY1);
}

}  // namespace magi::planner
