// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "mask/slice_lists.hpp"
#include "support/random_mask.hpp"
#include "support/random_streams.hpp"

namespace magi {
namespace {

TEST(Transpose, SwapsQueriesAndKeysOfEveryPair) {
  for (RandomStream& random : testing::RandomStreams(20)) {
    const Mask mask = random_mask(random);
    const Mask other{mask.rows_k, mask.rows_q, transpose(mask.slices)};
    EXPECT_EQ(transpose(other.slices), mask.slices);
    const auto counts = expand(mask);
    const auto swapped = expand(other);
    const auto rows_q = static_cast<std::size_t>(mask.rows_q);
    const auto rows_k = static_cast<std::size_t>(mask.rows_k);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      ASSERT_EQ(counts[i], swapped[i % rows_k * rows_q + i / rows_k]);
    }
  }
}

}  // namespace
}  // namespace magi
