// SPDX-License-Identifier: Apache-2.0
#include "plan/placement/exact.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "plan/placement/evaluate.hpp"
#include "plan/placement/placement_cases.hpp"

namespace magi {
namespace {

/// Least largest area over all assignments within the cap.
std::int64_t exhaustive(const ChunkTable& table, const PlacementLimits& limits) {
  const std::size_t n = table.area.size();
  Assignment rank_of(n, 0);
  std::int64_t best = table.total_area();
  while (true) {
    bool is_allowed = true;
    for (std::int32_t r = 0; r < limits.num_ranks; ++r) {
      is_allowed = is_allowed && std::count(rank_of.begin(), rank_of.end(), r) <= limits.max_chunks;
    }
    if (is_allowed) best = std::min(best, largest_area(table, rank_of, limits.num_ranks));
    std::size_t digit = 0;
    while (digit < n && ++rank_of[digit] == limits.num_ranks) rank_of[digit++] = 0;
    if (digit == n) return best;
  }
}

ChunkTable random_table(RandomStream& random, std::int32_t chunks) {
  ChunkTable table;
  table.num_rows = chunks;
  table.chunk_size = 1;
  table.key_begin.assign(static_cast<std::size_t>(chunks) + 1, 0);
  for (std::int32_t c = 0; c < chunks; ++c) table.area.push_back(random.between(0, 40));
  return table;
}

TEST(ExactPlacement, EqualsExhaustiveSearch) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed);
    const ChunkTable table = random_table(random, random.between(2, 8));
    const std::int32_t ranks = random.between(2, std::min(4, table.num_chunks()));
    const std::int32_t even = (table.num_chunks() + ranks - 1) / ranks;
    const PlacementLimits limits{ranks, random.between(even, table.num_chunks())};
    const std::int64_t expected = exhaustive(table, limits);
    for (const auto algorithm : {&place_subsets, &place_binary_search, &place_backtracking}) {
      const Assignment rank_of = algorithm(table, limits);
      EXPECT_EQ(largest_area(table, rank_of, ranks), expected);
      for (std::int32_t r = 0; r < ranks; ++r) {
        EXPECT_LE(std::count(rank_of.begin(), rank_of.end(), r), limits.max_chunks);
      }
    }
  }
}

TEST(ExactPlacement, StopsOnLargeInputsNoWorseThanMinHeap) {
  RandomStream random(1);
  for (const std::int32_t chunks : {kSubsetChunks + 1, 200, kSearchChunks + 8}) {
    SCOPED_TRACE(chunks);
    const ChunkTable table = random_table(random, chunks);
    const PlacementLimits limits{8, (chunks + 7) / 8};
    const std::int64_t heap = largest_area(table, place_min_heap(table, limits), 8);
    for (const auto algorithm : {&place_subsets, &place_binary_search, &place_backtracking}) {
      EXPECT_LE(largest_area(table, algorithm(table, limits), 8), heap);
    }
  }
}

}  // namespace
}  // namespace magi
