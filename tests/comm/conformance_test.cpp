// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "comm/exchange_case.hpp"
#include "comm/ranks.hpp"

// What every backend promises, run over each of them. What becomes of rows of all types and kinds
// is tested in rows/row_exchanger_test.cpp.
namespace magi::testing {
namespace {

using Indices = std::vector<std::int64_t>;

class Conformance : public ::testing::TestWithParam<Backend> {
 protected:
  void run(const GroupSetup& setup, const RankBody& body) { run_ranks(GetParam(), setup, body); }
};

INSTANTIATE_TEST_SUITE_P(Backends, Conformance,
                         ::testing::Values(Backend::Threads, Backend::Shm, Backend::Bytes,
                                           Backend::Nccl),
                         [](const auto& backend) { return backend_name(backend.param); });

const RowExchange& rows_of(const ExchangeCase& test, std::int32_t rank) {
  return test.ranks[static_cast<std::size_t>(rank)];
}

std::int64_t needed_rows(const ExchangeCase& test, std::int32_t rank) {
  return test.needed_rows[static_cast<std::size_t>(rank)];
}

std::int64_t place_of(const Indices& at) {
  return std::accumulate(at.begin() + 1, at.end(), std::int64_t{0},
                         [](std::int64_t sum, std::int64_t i) { return sum * 5 + i; });
}

/// The owned tensor of `rank`, marked; and one for what it needs.
HostTensor marked(HostTensor tensor, std::int32_t rank) {
  fill(tensor.view, [rank](const Indices& at) { return mark(rank, at[0], place_of(at)); });
  return tensor;
}

void expect_cast(const ExchangeCase& test, std::int32_t rank, const TensorView& received) {
  std::int64_t num_wrong = 0;
  for_each_element(received, [&](const Indices& at) {
    const auto& origin =
        test.origin[static_cast<std::size_t>(rank)][static_cast<std::size_t>(at[0])];
    const double expected = mark(origin.owner, origin.row, place_of(at));
    num_wrong += read_element(received, at) != expected;
  });
  EXPECT_EQ(num_wrong, 0) << "rank " << rank;
}

/// How often ranks need a row of `owner`.
double count_readers(const ExchangeCase& test, std::int32_t owner, std::int64_t row) {
  std::ptrdiff_t count = 0;
  for (const auto& origins : test.origin) {
    count += std::ranges::count_if(
        origins, [&](const auto& from) { return from.owner == owner && from.row == row; });
  }
  return static_cast<double>(count);
}

TEST_P(Conformance, CastsAndReducesMoveRowsAndAreCounted) {
  for (const std::int32_t num_ranks : {1, 2, 8}) {
    const auto seed = static_cast<std::uint64_t>(num_ranks) + 7;
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ExchangeCase test = random_case(
        {.num_ranks = num_ranks, .with_own_rows = true, .idle_rank = num_ranks - 2}, seed);
    run({.num_ranks = num_ranks}, [&](Communicator& group) {
      const std::int32_t rank = group.rank();
      const HostTensor own = marked(make_head_slice(DType::Float32, 40, 2, 5), rank);
      const HostTensor received = make_tensor(DType::Float32, {needed_rows(test, rank), 2, 5});
      group.group_cast({&own.view, 1}, {&received.view, 1}, rows_of(test, rank), {})->wait_sync();
      expect_cast(test, rank, received.view);
      // Back again: a row comes home from each rank that needed it.
      group
          .group_reduce({&received.view, 1}, {&own.view, 1}, rows_of(test, rank), ExchangeKind::Sum,
                        {})
          ->wait_sync();
      std::int64_t num_wrong = 0;
      for_each_element(own.view, [&](const Indices& at) {
        const double sum = mark(rank, at[0], place_of(at)) * (1 + count_readers(test, rank, at[0]));
        num_wrong += read_element(own.view, at) != sum;
      });
      EXPECT_EQ(num_wrong, 0) << "rank " << rank;
      const CommCounters& counters = group.counters();
      EXPECT_EQ(counters.casts, 1);
      EXPECT_EQ(counters.reduces, 1);
      for (std::int32_t peer = 0; peer < num_ranks; ++peer) {
        const std::int64_t rows = test.rows_between(rank, peer) + test.rows_between(peer, rank);
        EXPECT_EQ(counters.bytes_to_peer[static_cast<std::size_t>(peer)],
                  peer == rank ? 0 : rows * 40)
            << "rank " << rank << " to " << peer;
      }
      group.close_sync();
    });
  }
}

TEST_P(Conformance, StagesMayBeWaitedForInAnyOrder) {
  constexpr std::int32_t kStages = 5;
  std::vector<ExchangeCase> stages;
  for (std::uint64_t stage = 0; stage < kStages; ++stage) {
    stages.push_back(random_case({.num_ranks = 3, .owned_rows = 300}, 100 + stage));
  }
  // A window that holds no stage: rows of a later stage must not block an earlier one.
  run({.num_ranks = 3,
       .options = {.deadline = std::chrono::seconds(20), .window_bytes = 64},
       .max_ring_bytes = 3000},
      [&](Communicator& group) {
        const HostTensor own = marked(make_tensor(DType::Float32, {300, 2, 8}), group.rank());
        std::vector<HostTensor> received;
        std::vector<std::unique_ptr<PendingExchange>> pending;
        for (std::int32_t stage = 0; stage < kStages; ++stage) {
          const ExchangeCase& test = stages[static_cast<std::size_t>(stage)];
          received.push_back(make_tensor(DType::Float32, {needed_rows(test, group.rank()), 2, 8}));
          pending.push_back(group.group_cast({&own.view, 1}, {&received.back().view, 1},
                                             rows_of(test, group.rank()), {.stage = stage}));
        }
        for (const std::size_t stage : {3, 0, 4, 2, 1}) pending[stage]->wait_sync();
        for (std::size_t stage = 0; stage < kStages; ++stage) {
          expect_cast(stages[stage], group.rank(), received[stage].view);
        }
        group.close_sync();
      });
}

TEST_P(Conformance, TransfersLargerThanTheWindowGoThroughInPieces) {
  // Many rows of 600 bytes, and few rows that are larger than a slot.
  for (const std::int64_t width : {150, 5000}) {
    const std::int64_t rows = width == 150 ? 400 : 12;
    const ExchangeCase sized = all_to_all_case(3, rows);
    for (const std::size_t ring : {std::size_t{1}, std::size_t{100'000}, std::size_t{64} << 20}) {
      run({.num_ranks = 3,
           .options = {.deadline = std::chrono::seconds(20), .window_bytes = 1},
           .max_ring_bytes = ring},
          [&](Communicator& group) {
            const std::int32_t rank = group.rank();
            const HostTensor own = marked(make_tensor(DType::Float32, {rows, width}), rank);
            const HostTensor received =
                make_tensor(DType::Float32, {needed_rows(sized, rank), width});
            group.group_cast({&own.view, 1}, {&received.view, 1}, rows_of(sized, rank), {})
                ->wait_sync();
            expect_cast(sized, rank, received.view);
            group.close_sync();
          });
    }
  }
}

TEST_P(Conformance, AllgatherKeepsSizesAndOrder) {
  run({.num_ranks = 5}, [&](Communicator& group) {
    for (const std::size_t scale : {std::size_t{0}, std::size_t{1}, std::size_t{40'000}}) {
      const std::vector<std::byte> own(static_cast<std::size_t>(group.rank()) * scale,
                                       static_cast<std::byte>(group.rank()));
      const auto all = group.allgather_sync(own);
      ASSERT_EQ(all.size(), 5u);
      for (std::size_t rank = 0; rank < 5; ++rank) {
        EXPECT_EQ(all[rank], std::vector<std::byte>(rank * scale, static_cast<std::byte>(rank)));
      }
    }
    group.close_sync();
  });
}

TEST_P(Conformance, EmptyTensorsStandForNoRows) {
  const ExchangeCase test = random_case({.num_ranks = 3, .idle_rank = 1}, 5);
  run({.num_ranks = 3}, [&](Communicator& group) {
    const std::int32_t rank = group.rank();
    const HostTensor own = marked(make_tensor(DType::Float32, {40, 4}), rank);
    const HostTensor received = make_tensor(DType::Float32, {needed_rows(test, rank), 4});
    const TensorView none;
    const std::array inputs{rank == 1 ? none : own.view};
    const std::array outputs{rank == 1 ? none : received.view};
    group.group_cast(inputs, outputs, rows_of(test, rank), {})->wait_sync();
    if (rank != 1) expect_cast(test, rank, received.view);
    group.close_sync();
  });
}

TEST_P(Conformance, EqualDigestsPassAndDifferentOnesNameTheRank) {
  run({.num_ranks = 3}, [](Communicator& group) {
    check_plan_digest_sync(group, 42);
    const std::uint64_t digest = group.rank() == 2 ? 0xabcu : 0x123u;
    const CommError error = catch_comm_error([&] { check_plan_digest_sync(group, digest); });
    EXPECT_EQ(error.failure(), CommFailure::PlanMismatch);
    EXPECT_STREQ(error.what(),
                 "ranks hold different plans: rank 0 has plan 0x0000000000000123, rank 2 has plan "
                 "0x0000000000000abc");
    group.close_sync();
  });
}

}  // namespace
}  // namespace magi::testing
