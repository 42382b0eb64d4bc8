// SPDX-License-Identifier: Apache-2.0
#include "plan/travel/grid.hpp"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "plan/travel/work_support.hpp"
#include "support/random_streams.hpp"

namespace magi::planner {
namespace {

TEST(WorkGrid, CutsHoldEveryPairOnceInTheTileOfTheirParts) {
  for (RandomStream& random : testing::RandomStreams(200)) {
    const GridCase test = random_grid(random);
    const WorkGrid& grid = test.grid;
    EXPECT_EQ(expand({test.mask.rows_q, test.mask.rows_k, grid.cuts}), expand(test.mask));
    EXPECT_EQ(grid.total_area(), area(test.mask));
    for (const WorkTile& tile : grid.tiles) {
      const WorkPart& q = grid.q.at(static_cast<std::size_t>(tile.q));
      const WorkPart& k = grid.k.at(static_cast<std::size_t>(tile.k));
      std::int64_t pairs = 0;
      for (const BandSlice& cut : grid.cuts_of(tile)) {
        EXPECT_EQ(cut, shrink(cut));
        EXPECT_TRUE(cut.q0 >= q.begin && cut.q1 <= q.end && cut.k0 >= k.begin && cut.k1 <= k.end);
        pairs += area(cut);
      }
      EXPECT_EQ(pairs, tile.area);
      EXPECT_GT(pairs, 0);
    }
  }
}

TEST(WorkGrid, PartsTileTheRowsInRunsOfOneOwner) {
  for (RandomStream& random : testing::RandomStreams(100)) {
    const GridCase test = random_grid(random);
    std::int32_t next = 0;
    for (const WorkPart& part : test.grid.q) {
      EXPECT_EQ(part.begin, next);
      EXPECT_GT(part.end, part.begin);
      next = part.end;
      for (std::int32_t row = part.begin; row < part.end; ++row) {
        const auto chunk = static_cast<std::size_t>(row / test.rows_q.chunk_size);
        EXPECT_EQ(test.rows_q.chunk_rank.at(chunk), part.owner);
      }
    }
    EXPECT_EQ(next, test.rows_q.num_rows);
  }
}

TEST(WorkGrid, RowsAndColumnsListTheTiles) {
  RandomStream random(5);
  const WorkGrid grid = random_grid(random).grid;
  std::set<std::pair<std::int32_t, std::int32_t>> seen;
  for (std::size_t i = 0; i < grid.q.size(); ++i) {
    for (std::int32_t t = grid.row_begin[i]; t < grid.row_begin[i + 1]; ++t) {
      const WorkTile& tile = grid.tiles.at(static_cast<std::size_t>(t));
      EXPECT_EQ(tile.q, static_cast<std::int32_t>(i));
      EXPECT_TRUE(seen.insert({tile.k, tile.q}).second);
    }
  }
  EXPECT_EQ(seen.size(), grid.tiles.size());
  for (std::size_t j = 0; j < grid.k.size(); ++j) {
    for (std::int32_t t = grid.column_begin[j]; t < grid.column_begin[j + 1]; ++t) {
      const std::int32_t tile = grid.column_tiles.at(static_cast<std::size_t>(t));
      EXPECT_EQ(grid.tiles.at(static_cast<std::size_t>(tile)).k, static_cast<std::int32_t>(j));
    }
  }
}

TEST(WorkGrid, LongRunsAreHalvedUntilTheyFit) {
  const GridCase test = ordered_causal(1200, 3, 100);
  ASSERT_EQ(test.grid.q.size(), 12u);
  EXPECT_EQ(test.grid.q[1].begin, 100);
  EXPECT_EQ(test.grid.q[11].owner, 2);
  EXPECT_EQ(part_of(test.grid.q, 399), 3);
  EXPECT_EQ(part_of(test.grid.q, 400), 4);
}

}  // namespace
}  // namespace magi::planner
