// SPDX-License-Identifier: Apache-2.0
#include "comm/nvlink/peer_places.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <set>

#include "comm/exchange_case.hpp"
#include "comm/rows/wire_order.hpp"
#include "magi/error.hpp"

// Places at peers, against the tables by which the peers themselves find rows.
namespace magi::testing {
namespace {

using comm::peer_places;
using comm::PushTask;
using comm::RowRun;

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

/// Rows of the records that name `peer`, in their order.
std::vector<std::int32_t> rows_with(const std::vector<PeerRows>& records, std::int32_t peer) {
  std::vector<std::int32_t> rows;
  for (const PeerRows& record : records) {
    for (std::int32_t i = 0; record.peer == peer && i < record.num_rows; ++i) {
      rows.push_back(record.row + i);
    }
  }
  return rows;
}

/// The rows of `rank` on the wire of a peer, and which of `rows` each is, in order.
std::map<std::int32_t, std::int32_t> on_wire(
    const std::vector<std::pair<std::int32_t, std::int32_t>>& wire, std::int32_t rank,
    const std::vector<std::int32_t>& rows) {
  std::map<std::int32_t, std::int32_t> found;
  std::size_t next = 0;
  for (std::size_t row = 0; row < wire.size(); ++row) {
    if (wire[row].first == rank) found.emplace(static_cast<std::int32_t>(row), rows.at(next++));
  }
  EXPECT_EQ(next, rows.size());
  return found;
}

void expect_places(const ExchangeCase& test, std::int32_t rank, std::int32_t peer) {
  const RowExchange& own = test.ranks[static_cast<std::size_t>(rank)];
  const RowExchange& theirs = test.ranks[static_cast<std::size_t>(peer)];
  const auto places = peer_places(test.ranks, rank);
  const auto owned = rows_with(own.owned, peer);
  const auto wanted = rows_with(theirs.needed, rank);
  ASSERT_EQ(wanted.size(), owned.size());
  std::map<std::int32_t, std::int32_t> final_rows;
  for (std::size_t i = 0; i < wanted.size(); ++i) final_rows.emplace(wanted[i], owned[i]);
  EXPECT_EQ(sent_rows(places.to_rows, peer), final_rows);
  if (peer == rank) {
    EXPECT_TRUE(sent_rows(wire_tasks(places), peer).empty());
    EXPECT_TRUE(sent_rows(owner_tasks(places), peer).empty());
    return;
  }
  EXPECT_EQ(sent_rows(wire_tasks(places), peer),
            on_wire(wire_of(theirs.needed, peer), rank, owned));
  EXPECT_EQ(sent_rows(owner_tasks(places), peer),
            on_wire(wire_of(theirs.owned, peer), rank, rows_with(own.needed, peer)));
}

TEST(PeerPlaces, AgreeWithTheReceiversOwnTables) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ExchangeCase test = random_case({.num_ranks = 4, .with_own_rows = true}, seed);
    for (std::int32_t rank = 0; rank < 4; ++rank) {
      for (std::int32_t peer = 0; peer < 4; ++peer) expect_places(test, rank, peer);
    }
  }
}

TEST(PeerPlaces, NeededRunsNameWhereTheirPartialsGo) {
  const ExchangeCase test = random_case({.num_ranks = 4, .with_own_rows = true}, 5);
  const auto places = peer_places(test.ranks, 2);
  std::map<std::int32_t, std::int32_t> wire_rows;  // by local row
  for (const PushTask& task : owner_tasks(places)) {
    for (std::int32_t i = 0; i < task.num_rows; ++i) {
      wire_rows.emplace(task.local_row + i, task.remote_row + i);
    }
  }
  std::int32_t row = 0;
  for (const PushTask& run : places.needed_runs) {
    EXPECT_GE(run.local_row, row);
    row = run.local_row + run.num_rows;
    for (std::int32_t i = 0; i < run.num_rows; ++i) {
      const auto found = wire_rows.find(run.local_row + i);
      EXPECT_EQ(found == wire_rows.end(), run.peer == 2);
      if (found == wire_rows.end()) continue;
      EXPECT_EQ(found->second, run.remote_row + i);
    }
  }
}

TEST(PeerPlaces, OwnRunsAreSharedAsAWholeOrNotAtAll) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ExchangeCase test = random_case({.num_ranks = 3, .with_own_rows = true}, seed);
    const RowExchange& own = test.ranks[1];
    const auto places = peer_places(test.ranks, 1);
    std::set<std::int32_t> shared;
    for (const std::int32_t peer : {0, 2}) {
      const auto rows = rows_with(own.owned, peer);
      shared.insert(rows.begin(), rows.end());
    }
    std::map<std::int32_t, std::int32_t> owned_rows;  // by needed row
    for (const PushTask& run : places.needed_runs) {
      if (run.peer != 1) continue;
      for (std::int32_t i = 0; i < run.num_rows; ++i) {
        owned_rows.emplace(run.local_row + i, run.remote_row + i);
        EXPECT_EQ(places.is_shared(run), shared.contains(run.remote_row + i));
      }
    }
    EXPECT_EQ(owned_rows, sent_rows(places.to_rows, 1));
  }
}

TEST(PeerPlaces, OwnRunsAreCutOnlyWhereSharedRowsBeginAndEnd) {
  const std::vector<RowExchange> all = {
      {.owned = {{0, 0, 10}, {1, 2, 3}, {2, 4, 2}, {1, 9, 1}}, .needed = {{0, 100, 10}}},
      {.owned = {}, .needed = {{0, 0, 4}}},
      {.owned = {}, .needed = {{0, 0, 2}}}};
  const auto places = peer_places(all, 0);
  EXPECT_EQ(places.shared, (std::vector<RowRun>{{2, 6}, {9, 10}}));
  EXPECT_EQ(
      places.needed_runs,
      (std::vector<PushTask>{{100, 0, 2, 0}, {102, 2, 4, 0}, {106, 6, 3, 0}, {109, 9, 1, 0}}));
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
