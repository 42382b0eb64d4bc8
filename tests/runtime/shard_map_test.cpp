// SPDX-License-Identifier: Apache-2.0
#include "runtime/shard_map.hpp"

#include <gtest/gtest.h>

#include "magi/runtime.hpp"
#include "plan/placements.hpp"

namespace magi {
namespace {

void move_rows(const std::vector<std::int32_t>& from, const LocalMove& rows,
               std::vector<std::int32_t>& to) {
  for (std::int32_t i = 0; i < rows.num_rows; ++i) {
    std::int32_t& slot = to.at(static_cast<std::size_t>(rows.target_row + i));
    EXPECT_EQ(slot, -1) << "row written twice";
    slot = from.at(static_cast<std::size_t>(rows.source_row + i));
  }
}

std::vector<PeerRows> with_peer(const std::vector<PeerRows>& records, std::size_t peer) {
  std::vector<PeerRows> result;
  for (const PeerRows& rows : records) {
    if (rows.peer == static_cast<std::int32_t>(peer)) result.push_back(rows);
  }
  return result;
}

/// Plays the tables of all ranks on tensors of one integer per row: what a communicator does.
std::vector<std::vector<std::int32_t>> play_roll(const Placement& placement, std::int32_t num_valid,
                                                 std::int64_t shift) {
  std::vector<RollTable> tables;
  std::vector<std::vector<std::int32_t>> inputs;
  std::vector<std::vector<std::int32_t>> outputs;
  for (std::int32_t rank = 0; rank < placement.num_ranks; ++rank) {
    tables.push_back(roll_table(placement, rank, num_valid, shift));
    inputs.push_back(global_rows(placement, rank));
    outputs.emplace_back(inputs.back().size(), -1);
  }
  for (std::size_t r = 0; r < tables.size(); ++r) {
    for (const LocalMove& local : tables[r].moves) move_rows(inputs[r], local, outputs[r]);
    for (std::size_t peer = 0; peer < tables.size(); ++peer) {
      const auto sent = with_peer(tables[peer].exchange.owned, r);
      const auto received = with_peer(tables[r].exchange.needed, peer);
      EXPECT_TRUE(peer != r || sent.empty()) << "a rank sends to itself";
      EXPECT_EQ(sent.size(), received.size());
      for (std::size_t i = 0; i < std::min(sent.size(), received.size()); ++i) {
        EXPECT_EQ(sent[i].num_rows, received[i].num_rows);
        move_rows(inputs[peer], {sent[i].row, received[i].row, sent[i].num_rows}, outputs[r]);
      }
    }
  }
  return outputs;
}

TEST(RollTable, MovesEveryRowOnceToItsPlace) {
  std::mt19937_64 random(20261);
  for (int trial = 0; trial < 400; ++trial) {
    const Placement placement = random_placement(random);
    const auto num_valid =
        std::uniform_int_distribution<std::int32_t>(0, placement.num_rows)(random);
    const auto shift = std::uniform_int_distribution<std::int64_t>(-200, 200)(random);
    SCOPED_TRACE(testing::Message() << "seed 20261, trial " << trial << ", shift " << shift
                                    << ", valid rows " << num_valid);
    const auto outputs = play_roll(placement, num_valid, shift);
    for (std::int32_t rank = 0; rank < placement.num_ranks; ++rank) {
      const auto rows = global_rows(placement, rank);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        std::int64_t expected = rows[i];
        if (rows[i] < num_valid) {
          expected = ((rows[i] - shift) % num_valid + num_valid) % num_valid;
        }
        EXPECT_EQ(outputs[static_cast<std::size_t>(rank)][i], expected);
      }
    }
  }
}

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

TEST(ShardRuns, CoverTheLocalRowsInOrder) {
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    SCOPED_TRACE(testing::Message() << "seed 7, trial " << trial);
    const Placement placement = random_placement(random);
    const auto limit = std::uniform_int_distribution<std::int32_t>(0, placement.num_rows)(random);
    for (std::int32_t rank = 0; rank < placement.num_ranks; ++rank) {
      std::vector<std::int32_t> expected = global_rows(placement, rank);
      std::erase_if(expected, [limit](std::int32_t row) { return row >= limit; });
      std::vector<std::int32_t> seen;
      for (const ShardRun& run : shard_runs(placement, rank, limit)) {
        EXPECT_EQ(run.local_row, static_cast<std::int32_t>(seen.size()));
        EXPECT_GT(run.num_rows, 0);
        for (std::int32_t i = 0; i < run.num_rows; ++i) seen.push_back(run.global_row + i);
      }
      EXPECT_EQ(seen, expected);
    }
  }
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
