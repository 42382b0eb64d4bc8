// SPDX-License-Identifier: Apache-2.0
#include "comm/wire_order.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/exchange_case.hpp"

namespace magi::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(WireOrder, ListsRowsByPeerInTheOrderOfTheRecords) {
  const std::vector<PeerRows> records = {{2, 7, 2}, {0, 3, 1}, {2, 0, 3}, {1, 4, 0}};
  const WireOrder order = wire_order(records, 4);
  EXPECT_EQ(order.num_rows, 6);
  EXPECT_THAT(order.peer_rows, ElementsAre(1, 0, 5, 0));
  EXPECT_THAT(order.tasks, ElementsAre(RowTask{3, 0, 1}, RowTask{7, 1, 2}, RowTask{0, 3, 3}));
  EXPECT_FALSE(order.shift.has_value());
  EXPECT_THAT(order.peer_bytes(16), ElementsAre(16, 0, 80, 0));
}

TEST(WireOrder, JoinsNeighboursAndCutsLongRuns) {
  const std::vector<PeerRows> records = {{0, 10, 30}, {1, 40, 10}};
  const WireOrder order = wire_order(records, 2);
  EXPECT_THAT(order.tasks, ElementsAre(RowTask{10, 0, 32}, RowTask{42, 32, 8}));
  EXPECT_EQ(order.shift, 10);
}

TEST(WireOrder, OfNothingIsEmpty) {
  const WireOrder order = wire_order({}, 3);
  EXPECT_EQ(order.num_rows, 0);
  EXPECT_THAT(order.tasks, IsEmpty());
  EXPECT_EQ(order.shift, 0);
  EXPECT_THAT(sum_table(order).tasks, IsEmpty());
}

TEST(SumTable, GivesEveryRowItsPartsInRankOrder) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const testing::ExchangeCase test =
        testing::random_case({.num_ranks = 5, .owned_rows = 90, .with_own_rows = true}, seed);
    for (const RowExchange& rank : test.ranks) {
      const WireOrder owned = wire_order(rank.owned, test.num_ranks);
      std::vector<std::vector<std::int32_t>> expected(90);
      for (const RowTask& task : owned.tasks) {
        for (std::int32_t i = 0; i < task.num_rows; ++i) {
          expected[static_cast<std::size_t>(task.local_row + i)].push_back(task.wire_row + i);
        }
      }
      for (auto& parts : expected) std::ranges::sort(parts);
      std::vector<std::vector<std::int32_t>> seen(90);
      const SumTable table = sum_table(owned);
      for (const SumTask& task : table.tasks) {
        EXPECT_LE(task.num_rows, kRowsPerTask);
        for (std::int32_t i = 0; i < task.num_rows; ++i) {
          auto& parts = seen[static_cast<std::size_t>(task.row + i)];
          EXPECT_THAT(parts, IsEmpty()) << "row " << task.row + i << " is in two tasks";
          for (std::int32_t p = 0; p < task.num_parts; ++p) {
            parts.push_back(table.parts[static_cast<std::size_t>(task.first_part + p)] + i);
          }
        }
      }
      EXPECT_EQ(seen, expected) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace magi::comm
