// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "comm/exchange_case.hpp"
#include "comm/ranks.hpp"
#include "comm/rows/row_exchanger.hpp"

// Rows of four ranks in two nodes of two, all of which need all rows of the others. Sums and merges
// by node are in tests/runtime/nodes_test.cpp.
namespace magi::testing {
namespace {

constexpr std::int32_t kRanks = 4;
constexpr std::int32_t kNode = 2;
constexpr std::int32_t kRows = 3;  ///< own rows of a rank
constexpr std::int64_t kDim = 2;

std::int32_t mate_of(std::int32_t rank) { return rank ^ 1; }
std::int32_t counterpart_of(std::int32_t rank) { return rank ^ 2; }

/// Rows of rank r lie from kRows * r on among the needed ones; a rank's own stay out.
comm::RowTable all_to_all(std::int32_t rank) {
  RowExchange rows;
  for (std::int32_t peer = 0; peer < kRanks; ++peer) {
    if (peer == rank) continue;
    rows.owned.push_back({peer, 0, kRows});
    rows.needed.push_back({peer, kRows * peer, kRows});
  }
  return comm::RowTable(rows, rank, kRanks);
}

comm::RowTable by_node(std::int32_t rank) {
  const std::int32_t mate = mate_of(rank);
  const std::int32_t across = counterpart_of(rank);
  comm::RowTable table = all_to_all(rank);
  const RowExchange first{.owned = {{mate, 0, kRows}, {across, 0, kRows}},
                          .needed = {{mate, kRows * mate, kRows}, {across, kRows * across, kRows}}};
  const RowExchange onward{.owned = {{mate, kRows * across, kRows}},
                           .needed = {{mate, kRows * counterpart_of(mate), kRows}}};
  table.by_node = std::make_shared<comm::NodeTables>(
      comm::NodeTables{.first = comm::RowTable(first, rank, kRanks),
                       .onward = comm::RowTable(onward, rank, kRanks)});
  return table;
}

class HopExchanger : public ::testing::TestWithParam<Backend> {
 protected:
  using Body = std::function<void(Communicator&, comm::RowExchanger&)>;
  void run(const Body& body) {
    run_ranks(GetParam(), {.num_ranks = kRanks}, [&](Communicator& group) {
      const auto exchanger =
          comm::make_row_exchanger(group, kCpuDevice, {}, {.has_ways_by_node = true});
      body(group, *exchanger);
      group.close_sync();
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, HopExchanger,
                         ::testing::Values(Backend::Threads, Backend::Shm, Backend::Bytes,
                                           Backend::Nccl),
                         [](const auto& backend) { return backend_name(backend.param); });

HostTensor make_rows(std::int64_t rows, const std::function<double(std::int32_t)>& value) {
  auto tensor = make_tensor(DType::Float64, {rows, 1, kDim});
  fill(tensor.view, [&](const auto& index) { return value(static_cast<std::int32_t>(index[0])); });
  return tensor;
}

double element(const HostTensor& tensor, std::int64_t row) {
  return read_element(tensor.view, {row, 0, 0});
}

/// Ranks await in orders of their own; straight moves lie between those by node, which cross once
/// to each node.
TEST_P(HopExchanger, CastsMayBeAwaitedInAnyOrder) {
  run([](Communicator& group, comm::RowExchanger& exchanger) {
    constexpr std::size_t kMoves = 5;
    const std::int32_t rank = group.rank();
    const comm::RowTable straight = all_to_all(rank);
    const comm::RowTable hopping = by_node(rank);
    exchanger.prepare(hopping, {.kind = ExchangeKind::Cast}, {});
    std::vector<HostTensor> own, received;
    for (std::size_t m = 0; m < kMoves; ++m) {
      const double base = 100.0 * static_cast<double>(m) + 10.0 * rank;
      own.push_back(make_rows(kRows, [&](std::int32_t row) { return base + row; }));
      received.push_back(make_rows(kRows * kRanks, [](std::int32_t) { return -1.0; }));
    }
    std::vector<std::unique_ptr<comm::PendingRows>> moves;
    for (std::size_t m = 0; m < kMoves; ++m) {
      moves.push_back(exchanger.start(
          m % 3 == 1 ? straight : hopping,
          {.kind = ExchangeKind::Cast, .from = {&own[m].view, 1}, .to = {&received[m].view, 1}},
          nullptr));
      if (rank == 2) moves[m]->await(nullptr);
    }
    for (std::size_t i = 0; i < kMoves; ++i) {
      const std::size_t m = rank % 2 == 0 ? i : kMoves - 1 - i;
      moves[m]->await(nullptr);
      moves[m]->await(nullptr);
      for (std::int32_t row = 0; row < kRows * kRanks; ++row) {
        const std::int32_t peer = row / kRows;
        const double sent = 100.0 * static_cast<double>(m) + 10.0 * peer + row % kRows;
        EXPECT_EQ(element(received[m], row), peer == rank ? -1.0 : sent);
      }
    }
    // Three by node and two straight.
    std::vector<std::int64_t> sent(kRanks, 2);
    sent[static_cast<std::size_t>(mate_of(rank))] += 3 * 2;
    sent[static_cast<std::size_t>(counterpart_of(rank))] += 3;
    sent[static_cast<std::size_t>(rank)] = 0;
    for (std::int64_t& rows : sent) rows *= kRows * kDim * 8;
    EXPECT_EQ(group.counters().bytes_to_peer, sent);
  });
}

TEST(HopExchangerFailure, RowsGivenUpHalfWayEndTheGroup) {
  run_ranks(Backend::Threads, {.num_ranks = kRanks}, [](Communicator& group) {
    const auto exchanger =
        comm::make_row_exchanger(group, kCpuDevice, {}, {.has_ways_by_node = true});
    const comm::RowTable table = by_node(group.rank());
    const auto own = make_rows(kRows, [](std::int32_t) { return 1.0; });
    const auto received = make_rows(kRows * kRanks, [](std::int32_t) { return 0.0; });
    const auto start = [&] {
      return exchanger->start(
          table, {.kind = ExchangeKind::Cast, .from = {&own.view, 1}, .to = {&received.view, 1}},
          nullptr);
    };
    if (group.rank() == 1) return start().reset();
    // A rank may have all rows of the first exchange by then; of the second rank 1 sends none.
    const auto error = catch_comm_error([&] {
      for (int exchange = 0; exchange < 2; ++exchange) start()->await(nullptr);
    });
    EXPECT_EQ(error.failure(), CommFailure::Aborted) << error.what();
  });
}

}  // namespace
}  // namespace magi::testing
