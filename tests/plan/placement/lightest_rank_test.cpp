// SPDX-License-Identifier: Apache-2.0
#include "plan/placement/lightest_rank.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/random.hpp"

namespace magi {
namespace {

TEST(LightestRank, IsTheFirstOfTheLeastWithRoom) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    RandomStream random(seed);
    const auto num_ranks = static_cast<std::size_t>(random.between(1, 20));
    constexpr std::int64_t kFull = 1000;
    std::vector<std::int64_t> loads(num_ranks, 0);
    LightestRank lightest(num_ranks);
    for (int change = 0; change < 60; ++change) {
      const auto least = std::ranges::min_element(loads);
      if (*least == kFull) break;
      ASSERT_EQ(lightest.rank(), static_cast<std::size_t>(least - loads.begin())) << seed;
      const auto rank =
          static_cast<std::size_t>(random.between(0, static_cast<std::int32_t>(num_ranks) - 1));
      loads[rank] = random.chance(20) ? kFull : random.between(0, 5);
      if (loads[rank] == kFull) {
        lightest.set_full(rank);
      } else {
        lightest.set_load(rank, loads[rank]);
      }
    }
  }
}

}  // namespace
}  // namespace magi
