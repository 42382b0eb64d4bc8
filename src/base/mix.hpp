// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace magi {

/// 2^64 over the golden ratio: multiplication by it spreads what differs in low bits over high
/// ones.
inline constexpr std::uint64_t kGoldenRatio = 0x9e3779b97f4a7c15;

/// A hash that a further value has entered; the order of values counts.
constexpr std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  return (hash ^ value) * kGoldenRatio + (hash >> 29);
}

/// Every bit of the result depends on all bits of the word: the finaliser of SplitMix64 (Steele,
/// Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
constexpr std::uint64_t finish(std::uint64_t word) {
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
  word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
  return word ^ (word >> 31);
}

}  // namespace magi
