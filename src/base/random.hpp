// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/mix.hpp"

namespace magi {

/// A small counter-based generator (SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom
/// number generators", OOPSLA 2014). The stream is the same on every machine and standard library,
/// so that a printed seed reproduces a case anywhere.
class RandomStream {
 public:
  using result_type = std::uint64_t;

  explicit RandomStream(std::uint64_t seed) : state_(seed) {}
  static constexpr std::uint64_t min() { return 0; }
  static constexpr std::uint64_t max() { return ~std::uint64_t{0}; }
  std::uint64_t operator()() { return finish(state_ += kGoldenRatio); }
  /// Uniform in [low, high], both inclusive; high >= low.
  std::int32_t between(std::int32_t low, std::int32_t high) {
    // The bias of the remainder is below 2^-32, of no matter here.
    const auto span = static_cast<std::uint64_t>(std::int64_t{high} - low + 1);
    return static_cast<std::int32_t>(low + static_cast<std::int64_t>((*this)() % span));
  }
  /// True `percent` times in a hundred.
  bool chance(int percent) { return between(0, 99) < percent; }

 private:
  std::uint64_t state_;
};

}  // namespace magi
