// SPDX-License-Identifier: Apache-2.0
#include "plan/tables/received.hpp"

#include <gtest/gtest.h>

#include "plan/plan_support.hpp"

namespace magi::planner {
namespace {

TEST(Received, RowsAreCutAtTheBoundsOfParts) {
  std::vector<RowPiece> pieces;
  const std::vector<Range> rows{{0, 5}, {8, 11}};
  const auto segment_rows = place_received(
      rows, {.num_rows = 8, .num_parts = 2, .num_segments = 3, .num_own_rows = 3}, pieces);
  EXPECT_EQ(segment_rows, (std::vector<std::int32_t>{3, 4, 4}));
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(pieces[1].begin, 4);
  EXPECT_EQ(pieces[1].segment, 2);
  EXPECT_EQ(pieces[2].row, 1);
}

TEST(Received, CopiesOfOwnRowsStandInFront) {
  std::vector<RowPiece> pieces;
  const std::vector<Range> rows{{4, 6}};
  const auto segment_rows = place_received(
      rows, {.num_rows = 2, .num_segments = 2, .num_own_rows = 4, .is_copying_own = true}, pieces);
  EXPECT_EQ(segment_rows, (std::vector<std::int32_t>{4, 6}));
  EXPECT_EQ(pieces.at(0).row, 4);
}

TEST(Received, PiecesAreMergedAndTransfersJoinRunsOfOneOwner) {
  // Rank 0 owns rows 0-3 and 8-11, rank 1 the others.
  const Layout layout = make_layout(placement_from_chunks(16, 4, 2, {0, 1, 0, 1}));
  std::vector<RowPiece> received;
  const std::vector<Range> rows{{4, 8}, {12, 14}};
  place_received(rows, {.num_rows = 6, .num_segments = 2, .num_own_rows = 8}, received);
  std::vector<RowPiece> all;
  merge_pieces(layout, 0, 0, received, all);
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[2].begin, 8);
  EXPECT_EQ(all[2].row, 4);
  std::vector<Transfer> transfers;
  append_transfers(layout, Space::Queries, 0, received, transfers);
  ASSERT_EQ(transfers.size(), 1u);
  EXPECT_EQ(
      transfers[0],
      (Transfer{.src = 1, .dst = 0, .dst_segment = 1, .space = Space::Queries, .num_rows = 6}));
}

}  // namespace
}  // namespace magi::planner
