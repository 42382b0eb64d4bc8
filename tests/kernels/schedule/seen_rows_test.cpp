// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/seen_rows.hpp"

#include <gtest/gtest.h>

#include "mask/random_mask.hpp"
#include "support/masks.hpp"
#include "support/random_streams.hpp"

namespace magi::test {
namespace {

bool has(const std::vector<std::uint32_t>& words, std::int32_t row) {
  return words.empty() ||
         (words[static_cast<std::size_t>(row / kSeenBits)] >> row % kSeenBits & 1) != 0;
}

TEST(SeenRowsTest, HaveABitForEachRowThatIsInSomePair) {
  for (RandomStream& random : testing::RandomStreams(200)) {
    const Mask mask = random_mask(random);
    const testing::Seen expected(mask);
    const SeenRows seen = find_seen_rows(mask.rows_q, mask.rows_k, mask.slices);
    const auto expect = [](const std::vector<std::uint32_t>& words, const std::vector<bool>& rows) {
      const bool are_all = std::ranges::all_of(rows, [](bool is_seen) { return is_seen; });
      ASSERT_EQ(words.empty(), are_all);
      for (std::size_t row = 0; row < rows.size(); ++row) {
        ASSERT_EQ(has(words, static_cast<std::int32_t>(row)), rows[row]) << "row " << row;
      }
    };
    expect(seen.queries, expected.queries);
    expect(seen.keys, expected.keys);
  }
}

}  // namespace
}  // namespace magi::test
