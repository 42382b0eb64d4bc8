// SPDX-License-Identifier: Apache-2.0
#include "runtime/shard_map.hpp"

#include <gtest/gtest.h>

#include "magi/runtime.hpp"

namespace magi {
namespace {

TEST(RollTable, WithoutShiftNothingChangesRank) {
  const Placement placement = placement_from_chunks(10, 2, 2, {0, 1, 0, 1, 0});
  for (const std::int64_t shift : {0, 10, -30}) {
    const RollTable table = roll_table(placement, 0, 10, shift);
    EXPECT_TRUE(table.exchange.owned.empty());
    EXPECT_TRUE(table.exchange.needed.empty());
  }
}

TEST(RollTable, ShiftByOneMovesOneRowPerChunkBorder) {
  const Placement placement = placement_from_chunks(8, 4, 2, {0, 1});
  const RollTable table = roll_table(placement, 0, 8, 1);
  EXPECT_EQ(table.exchange.owned, (std::vector<PeerRows>{{1, 3, 1}}));
  EXPECT_EQ(table.exchange.needed, (std::vector<PeerRows>{{1, 0, 1}}));
  EXPECT_EQ(table.moves, (std::vector<LocalMove>{{0, 1, 3}}));
}

TEST(ShardRuns, NeighbouringChunksAreOneRun) {
  const Placement placement = placement_from_chunks(9, 2, 2, {0, 0, 1, 0, 0});
  EXPECT_EQ(shard_runs(placement, 0, 9), (std::vector<ShardRun>{{0, 0, 0, 4}, {0, 4, 6, 3}}));
}

TEST(PositionIds, NameTheGlobalRowAndClampPadding) {
  const Placement placement = placement_from_chunks(12, 3, 2, {0, 1, 1, 0});
  EXPECT_EQ(position_ids(placement, 0, 10), (std::vector<std::int64_t>{0, 1, 2, 9, 9, 9}));
  EXPECT_EQ(position_ids(placement, 1, 10), (std::vector<std::int64_t>{3, 4, 5, 6, 7, 8}));
}

TEST(PositionIds, RefusesRanksAndRowsOutside) {
  const Placement placement = placement_from_chunks(12, 3, 2, {0, 1, 1, 0});
  EXPECT_THROW(position_ids(placement, 2, 10), InvalidArgument);
  EXPECT_THROW(position_ids(placement, -1, 10), InvalidArgument);
  EXPECT_THROW(position_ids(placement, 0, 0), InvalidArgument);
  EXPECT_THROW(position_ids(placement, 0, 13), InvalidArgument);
}

}  // namespace
}  // namespace magi
