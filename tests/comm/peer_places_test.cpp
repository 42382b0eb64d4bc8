// SPDX-License-Identifier: Apache-2.0
#include "comm/peer_places.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "comm/exchange_case.hpp"
#include "comm/wire_order.hpp"
#include "magi/error.hpp"

// Places at peers, against the tables by which the peers themselves find rows.
namespace magi::testing {
namespace {

using comm::peer_places;
using comm::PushTask;

/// For each row that tasks send to `peer`: {local row, remote row}, by remote row.
std::map<std::int32_t, std::int32_t> sent_rows(const std::vector<PushTask>& tasks,
                                               std::int32_t peer) {
  std::map<std::int32_t, std::int32_t> rows;
  for (const PushTask& task : tasks) {
    EXPECT_LE(task.num_rows, comm::kRowsPerPush);
    if (task.peer != peer) continue;
    for (std::int32_t i = 0; i < task.num_rows; ++i) {
      EXPECT_TRUE(rows.emplace(task.remote_row + i, task.local_row + i).second);
    }
  }
  return rows;
}

/// Rows of the wire of a rank's peers in order: {peer, local row}.
std::vector<std::pair<std::int32_t, std::int32_t>> wire_of(const std::vector<PeerRows>& records,
                                                           std::int32_t rank) {
  std::vector<PeerRows> sorted = records;
  std::ranges::stable_sort(sorted, {}, &PeerRows::peer);
  std::vector<std::pair<std::int32_t, std::int32_t>> rows;
  for (const PeerRows& record : sorted) {
    if (record.peer == rank) continue;
    for (std::int32_t i = 0; i < record.num_rows; ++i) {
      rows.emplace_back(record.peer, record.row + i);
    }
  }
  return rows;
}

TEST(PeerPlaces, AgreeWithTheReceiversOwnTables) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ExchangeCase test = random_case({.num_ranks = 4, .with_own_rows = true}, seed);
    for (std::int32_t rank = 0; rank < 4; ++rank) {
      const auto places = peer_places(test.ranks, rank);
      for (std::int32_t peer = 0; peer < 4; ++peer) {
        const RowExchange& theirs = test.ranks[static_cast<std::size_t>(peer)];
        // Final rows: what the peer needs of this rank, in the order of its records.
        std::vector<std::int32_t> wanted, owned;
        for (const PeerRows& r : theirs.needed) {
          for (std::int32_t i = 0; r.peer == rank && i < r.num_rows; ++i)
            wanted.push_back(r.row + i);
        }
        for (const PeerRows& r : test.ranks[static_cast<std::size_t>(rank)].owned) {
          for (std::int32_t i = 0; r.peer == peer && i < r.num_rows; ++i)
            owned.push_back(r.row + i);
        }
        std::map<std::int32_t, std::int32_t> expected;
        ASSERT_EQ(wanted.size(), owned.size());
        for (std::size_t i = 0; i < wanted.size(); ++i) expected.emplace(wanted[i], owned[i]);
        EXPECT_EQ(sent_rows(places.to_rows, peer), expected);
        if (peer == rank) {
          EXPECT_TRUE(sent_rows(places.to_wire, peer).empty());
          EXPECT_TRUE(sent_rows(places.to_owners, peer).empty());
          continue;
        }
        // The peer's wire of a cast, and of a reduce.
        const auto cast = sent_rows(places.to_wire, peer);
        std::size_t next = 0;
        const auto wire = wire_of(theirs.needed, peer);
        for (std::size_t row = 0; row < wire.size(); ++row) {
          if (wire[row].first != rank) continue;
          EXPECT_EQ(cast.at(static_cast<std::int32_t>(row)), owned[next++]);
        }
        EXPECT_EQ(cast.size(), next);
        std::vector<std::int32_t> partials;
        for (const PeerRows& r : test.ranks[static_cast<std::size_t>(rank)].needed) {
          for (std::int32_t i = 0; r.peer == peer && i < r.num_rows; ++i)
            partials.push_back(r.row + i);
        }
        const auto reduce = sent_rows(places.to_owners, peer);
        const auto slots = wire_of(theirs.owned, peer);
        next = 0;
        for (std::size_t row = 0; row < slots.size(); ++row) {
          if (slots[row].first != rank) continue;
          EXPECT_EQ(reduce.at(static_cast<std::int32_t>(row)), partials[next++]);
        }
        EXPECT_EQ(reduce.size(), next);
      }
    }
  }
}

TEST(PeerPlaces, NameTheRanksThatSend) {
  const std::vector<RowExchange> all = {{.owned = {{1, 0, 3}}, .needed = {{0, 0, 0}}},
                                        {.owned = {{1, 0, 2}}, .needed = {{0, 4, 3}, {1, 0, 2}}}};
  EXPECT_EQ(peer_places(all, 0).cast_sources, 0U);
  EXPECT_EQ(peer_places(all, 1).cast_sources, 0b11U);
  EXPECT_EQ(peer_places(all, 0).reduce_sources, 0b10U);
  EXPECT_EQ(peer_places(all, 0).most_rows, 7);
  EXPECT_EQ(peer_places(all, 0).most_needed, 5);
  EXPECT_EQ(peer_places(all, 1).most_owned, 3);
}

TEST(PeerPlaces, NeighbouringTasksGoToDifferentPeers) {
  std::vector<RowExchange> all(3);
  for (const std::int32_t peer : {1, 2}) {
    all[0].owned.push_back({peer, 0, 160});
    all[static_cast<std::size_t>(peer)].needed.push_back({0, 0, 160});
  }
  const auto tasks = peer_places(all, 0).to_rows;
  ASSERT_EQ(tasks.size(), 20U);
  for (std::size_t i = 0; i < tasks.size(); ++i) EXPECT_EQ(tasks[i].peer, i % 2 == 0 ? 1 : 2);
}

TEST(PeerPlaces, RanksThatDisagreeAreRefused) {
  const std::vector<RowExchange> all = {{.owned = {{1, 0, 3}}, .needed = {}},
                                        {.owned = {}, .needed = {{0, 4, 4}}}};
  EXPECT_THROW(peer_places(all, 0), InvalidArgument);
}

}  // namespace
}  // namespace magi::testing
