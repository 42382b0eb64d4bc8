// SPDX-License-Identifier: Apache-2.0
#include "base/random.hpp"

#include "base/mix.hpp"

namespace magi {

std::uint64_t RandomStream::operator()() {
  state_ += kGoldenRatio;
  return finish(state_);
}

std::int32_t RandomStream::between(std::int32_t low, std::int32_t high) {
  // The bias of the remainder is below 2^-32, of no matter here.
  const auto span = static_cast<std::uint64_t>(std::int64_t{high} - low + 1);
  return static_cast<std::int32_t>(low + static_cast<std::int64_t>((*this)() % span));
}

}  // namespace magi
