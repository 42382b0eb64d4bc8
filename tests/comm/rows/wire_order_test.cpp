// SPDX-License-Identifier: Apache-2.0
#include "comm/rows/wire_order.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "comm/exchange_case.hpp"

namespace magi::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(WireOrder, ListsRowsByPeerInTheOrderOfTheRecords) {
  const std::vector<PeerRows> records = {{2, 7, 2}, {0, 3, 1}, {2, 0, 3}, {1, 4, 0}};
  const WireOrder order = wire_order(records, 3, 4);
  EXPECT_EQ(order.num_rows, 6);
  EXPECT_THAT(order.peer_rows, ElementsAre(1, 0, 5, 0));
  EXPECT_THAT(order.tasks, ElementsAre(RowTask{3, 0, 1}, RowTask{7, 1, 2}, RowTask{0, 3, 3}));
  EXPECT_FALSE(order.shift.has_value());
  EXPECT_THAT(order.peer_bytes(16), ElementsAre(16, 0, 80, 0));
}

TEST(WireOrder, JoinsNeighboursAndCutsLongRuns) {
  const std::vector<PeerRows> records = {{0, 10, 30}, {1, 40, 10}};
  const WireOrder order = wire_order(records, 2, 3);
  EXPECT_THAT(order.tasks, ElementsAre(RowTask{10, 0, 32}, RowTask{42, 32, 8}));
  EXPECT_EQ(order.shift, 10);
}

TEST(WireOrder, OfNothingIsEmpty) {
  const WireOrder order = wire_order({}, 0, 3);
  EXPECT_EQ(order.num_rows, 0);
  EXPECT_THAT(order.tasks, IsEmpty());
  EXPECT_EQ(order.shift, 0);
  EXPECT_THAT(sum_table(order).tasks, IsEmpty());
}

TEST(WireOrder, LeavesTheOwnRanksRowsOut) {
  const std::vector<PeerRows> records = {{0, 0, 2}, {1, 2, 40}, {2, 42, 3}, {1, 0, 1}};
  const WireOrder order = wire_order(records, 1, 3);
  EXPECT_EQ(order.num_rows, 5);
  EXPECT_THAT(order.peer_rows, ElementsAre(2, 0, 3));
  EXPECT_THAT(order.tasks, ElementsAre(RowTask{0, 0, 2}, RowTask{42, 2, 3}));
  EXPECT_FALSE(order.shift.has_value());
  EXPECT_THAT(order.own_tasks,
              ElementsAre(RowTask{2, 0, 32}, RowTask{34, 32, 8}, RowTask{0, 40, 1}));
  EXPECT_EQ(order.num_own_rows, 41);
  EXPECT_EQ(order.rows_before_own, 2);
}

TEST(SumTable, GivesEveryRowItsPartsInRankOrder) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const testing::ExchangeCase test =
        testing::random_case({.num_ranks = 5, .owned_rows = 90, .with_own_rows = true}, seed);
    for (std::int32_t rank = 0; rank < test.num_ranks; ++rank) {
      const auto& records = test.ranks[static_cast<std::size_t>(rank)].owned;
      const WireOrder owned = wire_order(records, rank, test.num_ranks);
      EXPECT_EQ(owned.peer_rows[static_cast<std::size_t>(rank)], 0);
      std::vector<std::vector<std::int32_t>> expected(90);
      // The own rank's rows lie behind the wire's.
      auto own_row = static_cast<std::int32_t>(owned.num_rows);
      std::int32_t wire_row = 0;
      for (std::int32_t peer = 0; peer < test.num_ranks; ++peer) {
        for (const PeerRows& record : records) {
          if (record.peer != peer) continue;
          for (std::int32_t i = 0; i < record.num_rows; ++i) {
            expected[static_cast<std::size_t>(record.row + i)].push_back(peer == rank ? own_row++
                                                                                      : wire_row++);
          }
        }
      }
      std::vector<std::vector<std::int32_t>> seen(90);
      const SumTable table = sum_table(owned);
      std::int32_t sum_row = 0;
      for (const SumTask& task : table.tasks) {
        EXPECT_LE(task.num_rows, kRowsPerTask);
        EXPECT_EQ(std::exchange(sum_row, sum_row + task.num_rows), task.sum_row);
        for (std::int32_t i = 0; i < task.num_rows; ++i) {
          auto& parts = seen[static_cast<std::size_t>(task.row + i)];
          EXPECT_THAT(parts, IsEmpty()) << "row " << task.row + i << " is in two tasks";
          for (std::int32_t p = 0; p < task.num_parts; ++p) {
            parts.push_back(table.parts[static_cast<std::size_t>(task.first_part + p)] + i);
          }
        }
      }
      EXPECT_EQ(seen, expected) << "seed " << seed;
      EXPECT_EQ(table.num_rows(), sum_row);
    }
  }
}

}  // namespace
}  // namespace magi::comm
