// SPDX-License-Identifier: Apache-2.0
#include "simulate/work.hpp"

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "support/random_mask.hpp"

namespace magi::simulate {
namespace {

TEST(RowParts, GiveEveryChunkAnOwner) {
  const RowParts contiguous{.num_rows = 10, .num_members = 4};
  EXPECT_EQ(contiguous.chunk_size(), 3);
  EXPECT_EQ(contiguous.owner(3), 3);
  EXPECT_EQ(contiguous.rows_of_member(), 3);
  const RowParts zigzag{.num_rows = 16, .num_members = 4, .order = RowOrder::Zigzag};
  EXPECT_EQ(zigzag.chunk_size(), 2);
  EXPECT_EQ(zigzag.owner(0), 0);
  EXPECT_EQ(zigzag.owner(4), 3);
  EXPECT_EQ(zigzag.owner(7), 0);
  EXPECT_EQ(zigzag.rows_of_member(), 4);
}

TEST(Work, CountsRowsAndEdgesOfASlice) {
  Work work;
  work.add(BandSlice{0, 8, 0, 8, -3, 0});
  EXPECT_EQ(work, (Work{.area = 8 * 4 - 6, .rows = 8, .edges = 16}));
  work.add(BandSlice{0, 2, 0, 8});
  EXPECT_EQ(work, (Work{.area = 8 * 4 - 6 + 16, .rows = 10, .edges = 16}));
}

/// Pairs of a dense mask by the owners of query and key.
std::vector<std::int64_t> dense_areas(const Mask& mask, const RowParts& parts) {
  const auto members = static_cast<std::size_t>(parts.num_members);
  std::vector<std::int64_t> areas(members * members, 0);
  const std::vector<std::uint16_t> dense = expand(mask);
  const auto owner = [&](std::int32_t row) {
    return static_cast<std::size_t>(parts.owner(row / parts.chunk_size()));
  };
  for (std::int32_t q = 0; q < mask.rows_q; ++q) {
    for (std::int32_t k = 0; k < mask.rows_k; ++k) {
      const auto pair = static_cast<std::size_t>(q) * static_cast<std::size_t>(mask.rows_k) +
                        static_cast<std::size_t>(k);
      areas[owner(q) * members + owner(k)] += dense[pair];
    }
  }
  return areas;
}

TEST(Work, OfMembersIsThatOfTheDenseMask) {
  constexpr std::uint64_t kSeed = 21;
  SCOPED_TRACE(kSeed);
  RandomStream random(kSeed);
  for (int i = 0; i < 200; ++i) {
    RandomMaskOptions options;
    options.is_square = true;
    const Mask mask = random_mask(random, options);
    if (mask.rows_q == 0) continue;
    const RowParts parts{.num_rows = mask.rows_q,
                         .num_members = random.between(1, 9),
                         .order = random.chance(50) ? RowOrder::Zigzag : RowOrder::Contiguous};
    const std::vector<std::int64_t> areas = dense_areas(mask, parts);
    const std::vector<Work> pairs = pair_work(mask, parts);
    const std::vector<Work> queries = query_work(mask, parts);
    const auto members = static_cast<std::size_t>(parts.num_members);
    std::int64_t total = 0;
    for (std::size_t q = 0; q < members; ++q) {
      std::int64_t row = 0;
      for (std::size_t k = 0; k < members; ++k) {
        EXPECT_EQ(pairs[q * members + k].area, areas[q * members + k]);
        row += areas[q * members + k];
      }
      EXPECT_EQ(queries[q].area, row);
      total += row;
    }
    EXPECT_EQ(work_of(mask.slices).area, total);
    EXPECT_EQ(total, area(mask));
  }
}

}  // namespace
}  // namespace magi::simulate
