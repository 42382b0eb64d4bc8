// SPDX-License-Identifier: Apache-2.0
#include "base/random.hpp"

namespace magi {

std::uint64_t RandomStream::operator()() {
  state_ += 0x9e3779b97f4a7c15ULL;
  std::uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

std::int32_t RandomStream::between(std::int32_t low, std::int32_t high) {
  // The bias of the remainder is below 2^-32, of no matter here.
  const auto span = static_cast<std::uint64_t>(std::int64_t{high} - low + 1);
  return static_cast<std::int32_t>(low + static_cast<std::int64_t>((*this)() % span));
}

}  // namespace magi
