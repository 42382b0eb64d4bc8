// SPDX-License-Identifier: Apache-2.0
#include "bench/distributed/layouts.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "common/masks.hpp"

namespace magi::cli {
namespace {

/// Global rows in local order.
std::vector<std::int32_t> numbered(const Rows& rows) {
  std::vector<std::int32_t> numbers;
  for (const Range& range : rows) {
    for (std::int32_t row = range.begin; row < range.end; ++row) numbers.push_back(row);
  }
  return numbers;
}

TEST(DistLayouts, RanksHoldEveryRowOnce) {
  constexpr std::int32_t kTotal = 48, kSize = 4;
  std::vector<std::int32_t> contiguous, zigzag, shared;
  for (std::int32_t rank = 0; rank < kSize; ++rank) {
    std::ranges::copy(numbered(contiguous_rows(kTotal, kSize, rank)),
                      std::back_inserter(contiguous));
    std::ranges::copy(numbered(zigzag_rows(kTotal, kSize, rank)), std::back_inserter(zigzag));
    const Rows pair = zigzag_rows(kTotal, kSize / 2, rank / 2);
    std::ranges::copy(numbered(share_of(pair, 2, rank % 2)), std::back_inserter(shared));
  }
  const std::vector<std::int32_t> all = numbered({{0, kTotal}});
  EXPECT_EQ(contiguous, all);
  for (auto* rows : {&zigzag, &shared}) {
    EXPECT_EQ(rows->size(), all.size());
    EXPECT_EQ(std::set(rows->begin(), rows->end()).size(), all.size());
  }
  EXPECT_EQ(zigzag_rows(kTotal, kSize, 1), (Rows{{6, 12}, {36, 42}}));
  EXPECT_EQ(share_of({{0, 4}, {10, 18}}, 2, 1), (Rows{{12, 18}}));
  EXPECT_EQ(count_rows({{0, 4}, {10, 18}}), 12);
}

/// Pair by pair, what is left between rows of two ranks is what the mask says of these rows.
TEST(DistLayouts, SlicesBetweenRowsHoldTheirPairs) {
  constexpr std::int32_t kTotal = 120;
  for (const std::string& name : dist_mask_names()) {
    const Mask mask = dist_mask(name, kTotal);
    const auto counts = expand(mask);
    for (std::int32_t q_rank = 0; q_rank < 3; ++q_rank) {
      for (std::int32_t k_rank = 0; k_rank < 3; ++k_rank) {
        SCOPED_TRACE(name + " " + std::to_string(q_rank) + " " + std::to_string(k_rank));
        const Rows rows_q = zigzag_rows(kTotal, 3, q_rank), rows_k = zigzag_rows(kTotal, 3, k_rank);
        const auto slices = slices_between(mask.slices, rows_q, rows_k);
        const auto local = expand({count_rows(rows_q), count_rows(rows_k), slices});
        std::vector<std::uint16_t> wanted;
        for (const std::int32_t q : numbered(rows_q)) {
          for (const std::int32_t k : numbered(rows_k)) {
            wanted.push_back(
                counts[static_cast<std::size_t>(q) * kTotal + static_cast<std::size_t>(k)]);
          }
        }
        EXPECT_EQ(local, wanted);
        if (slices.empty()) continue;
        const Hull hull = hull_of(slices);
        Mask inside{hull.q.size(), hull.k.size(), slices_inside(hull, slices)};
        validate(inside);
        EXPECT_EQ(area(inside), area(Mask{count_rows(rows_q), count_rows(rows_k), slices}));
      }
    }
  }
}

TEST(DistLayouts, SeenKeysAreThoseOfAnyRow) {
  constexpr std::int32_t kTotal = 120;
  for (const std::string& name : dist_mask_names()) {
    SCOPED_TRACE(name);
    const Mask mask = dist_mask(name, kTotal);
    const auto counts = expand(mask);
    const Rows rows = zigzag_rows(kTotal, 3, 1);
    std::vector<std::int32_t> wanted;
    for (std::int32_t k = 0; k < kTotal; ++k) {
      const bool is_seen = std::ranges::any_of(numbered(rows), [&](std::int32_t q) {
        return counts[static_cast<std::size_t>(q) * kTotal + static_cast<std::size_t>(k)] > 0;
      });
      if (is_seen) wanted.push_back(k);
    }
    EXPECT_EQ(numbered(seen_keys(mask.slices, rows)), wanted);
  }
}

TEST(DistLayouts, NeighboursWithoutBoundsAreOneSlice) {
  const Mask mask = dist_mask("full", 96);
  EXPECT_EQ(slices_between(mask.slices, zigzag_rows(96, 3, 1), {{0, 96}}).size(), 1u);
}

}  // namespace
}  // namespace magi::cli
