// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/seen_rows.hpp"

#include <gtest/gtest.h>

#include "mask/random_mask.hpp"
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
    std::vector<bool> queries(static_cast<std::size_t>(mask.rows_q));
    std::vector<bool> keys(static_cast<std::size_t>(mask.rows_k));
    for (const BandSlice& slice : mask.slices) {
      for (std::int32_t row = 0; row < mask.rows_q; ++row) {
        const Range range = visible_keys(slice, row);
        if (range.empty()) continue;
        queries[static_cast<std::size_t>(row)] = true;
        std::fill(keys.begin() + range.begin, keys.begin() + range.end, true);
      }
    }
    const SeenRows seen = find_seen_rows(mask.rows_q, mask.rows_k, mask.slices);
    const auto expect = [](const std::vector<std::uint32_t>& words, const std::vector<bool>& rows) {
      const bool are_all = std::ranges::all_of(rows, [](bool is_seen) { return is_seen; });
      ASSERT_EQ(words.empty(), are_all);
      for (std::size_t row = 0; row < rows.size(); ++row) {
        ASSERT_EQ(has(words, static_cast<std::int32_t>(row)), rows[row]) << "row " << row;
      }
    };
    expect(seen.queries, queries);
    expect(seen.keys, keys);
  }
}

}  // namespace
}  // namespace magi::test
