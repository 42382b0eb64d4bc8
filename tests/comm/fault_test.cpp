// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "comm/exchange_case.hpp"
#include "comm/ranks.hpp"

// Planted faults of the transport: each is reported, none hangs, none gives wrong rows in silence.
namespace magi {
namespace {

using std::chrono::milliseconds;
using testing::Backend;
using testing::ExchangeCase;
using testing::GroupSetup;
using ::testing::HasSubstr;
using testing::HostTensor;

constexpr std::int64_t kWidth = 16;

class Faults : public ::testing::TestWithParam<Backend> {
 protected:
  /// Rank 1 commits the fault; a ring of two small slots makes many packets.
  static GroupSetup with_fault(comm::Fault fault) {
    return {.num_ranks = 3,
            .options = {.deadline = milliseconds(400), .window_bytes = 1},
            .max_ring_bytes = 1,
            .faulty_rank = 1,
            .fault = fault};
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, Faults, ::testing::Values(Backend::Threads, Backend::Shm),
                         [](const auto& backend) { return testing::backend_name(backend.param); });

double value_of(std::int32_t rank, std::int64_t row) {
  return static_cast<double>(rank) * 1000 + static_cast<double>(row);
}

/// Two stages of casts; true rows or an exception.
void cast_twice(Communicator& group, std::int64_t rows) {
  const ExchangeCase test = testing::all_to_all_case(group.num_ranks(), rows);
  const auto rank = static_cast<std::size_t>(group.rank());
  const HostTensor own = testing::make_tensor(DType::Float32, {rows, kWidth});
  testing::fill(own.view, [&](const auto& at) { return value_of(group.rank(), at[0]); });
  for (std::int32_t stage = 0; stage < 2; ++stage) {
    const HostTensor received =
        testing::make_tensor(DType::Float32, {test.needed_rows[rank], kWidth});
    group.group_cast({&own.view, 1}, {&received.view, 1}, test.ranks[rank], {.stage = stage})
        ->wait_sync();
    testing::for_each_element(received.view, [&](const auto& at) {
      const auto& origin = test.origin[rank][static_cast<std::size_t>(at[0])];
      ASSERT_EQ(testing::read_element(received.view, at), value_of(origin.owner, origin.row));
    });
  }
}

TEST_P(Faults, DelayChangesNothing) {
  testing::run_ranks(
      GetParam(),
      with_fault({.action = comm::FaultAction::Delay, .at_packet = 3, .delay = milliseconds(150)}),
      [](Communicator& group) {
        cast_twice(group, 200);
        group.close_sync();
      });
}

TEST_P(Faults, DroppedPacketInMidTransferIsReported) {
  testing::run_ranks(GetParam(), with_fault({.action = comm::FaultAction::Drop, .at_packet = 3}),
                     [](Communicator& group) {
                       const auto error =
                           testing::catch_comm_error([&] { cast_twice(group, 200); });
                       EXPECT_EQ(error.failure(), CommFailure::System) << error.what();
                       EXPECT_THAT(error.what(), HasSubstr("broken data from rank 1"));
                     });
}

TEST_P(Faults, DroppedWholeTransferIsReported) {
  // One packet per peer and stage: what follows is the next stage, or nothing.
  testing::run_ranks(GetParam(), with_fault({.action = comm::FaultAction::Drop, .at_packet = 0}),
                     [](Communicator& group) {
                       const auto error = testing::catch_comm_error([&] { cast_twice(group, 2); });
                       EXPECT_TRUE(error.failure() == CommFailure::System ||
                                   error.failure() == CommFailure::Timeout)
                           << error.what();
                       EXPECT_THAT(error.what(), HasSubstr("rank 1"));
                     });
}

TEST_P(Faults, TruncatedPacketIsReported) {
  for (const std::int64_t rows : {200, 3}) {
    testing::run_ranks(
        GetParam(), with_fault({.action = comm::FaultAction::Truncate, .at_packet = 0}),
        [&](Communicator& group) {
          const auto error = testing::catch_comm_error([&] { cast_twice(group, rows); });
          EXPECT_TRUE(error.failure() == CommFailure::System ||
                      error.failure() == CommFailure::Timeout)
              << error.what();
          EXPECT_THAT(error.what(), HasSubstr("rank 1"));
        });
  }
}

}  // namespace
}  // namespace magi
