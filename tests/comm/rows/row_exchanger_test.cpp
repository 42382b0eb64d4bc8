// SPDX-License-Identifier: Apache-2.0
#include "comm/rows/row_exchanger.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/ranks.hpp"
#include "comm/row_moves.hpp"
#include "comm/rows/row_memory.hpp"

// Moves of rows in host memory over each backend.
namespace magi {
namespace {

using testing::Backend;

class RowMoves : public ::testing::TestWithParam<Backend> {
 protected:
  void run(std::int32_t num_ranks, const testing::RankBody& body) {
    testing::run_ranks(GetParam(), {.num_ranks = num_ranks}, [&](Communicator& group) {
      body(group);
      group.close_sync();
    });
  }
  const testing::TestMemory host;
};

INSTANTIATE_TEST_SUITE_P(Backends, RowMoves,
                         ::testing::Values(Backend::Threads, Backend::Shm, Backend::Bytes,
                                           Backend::Nccl),
                         [](const auto& backend) { return testing::backend_name(backend.param); });

TEST_P(RowMoves, CastsBringEveryNeededRow) {
  for (const std::int32_t num_ranks : {1, 2, 4}) {
    const auto test = testing::random_case({.num_ranks = num_ranks, .with_own_rows = true}, 3);
    run(num_ranks, [&](Communicator& group) { testing::check_cast(group, test, host); });
  }
}

TEST_P(RowMoves, SumsAddInRankOrder) {
  const auto test = testing::random_case({.num_ranks = 4, .with_own_rows = true}, 4);
  run(4, [&](Communicator& group) {
    testing::check_sum(group, test, host, DType::Float32, DType::Float32);
    testing::check_sum(group, test, host, DType::BFloat16, DType::Float32);
    testing::check_sum(group, test, host, DType::BFloat16, DType::BFloat16);
    testing::check_sum(group, test, host, DType::Float64, DType::Float64);
  });
}

TEST_P(RowMoves, MergesWeighRowsAndIgnoreEmptyOnes) {
  const auto test = testing::random_case({.num_ranks = 4, .with_own_rows = true}, 11);
  run(4, [&](Communicator& group) {
    testing::check_merge(group, test, host, DType::Float64, DType::Float64);
    testing::check_merge(group, test, host, DType::Float32, DType::Float32);
    testing::check_merge(group, test, host, DType::BFloat16, DType::BFloat16);
  });
}

TEST_P(RowMoves, SumsApplyInStartOrderWhateverIsAwaited) {
  run(3, [&](Communicator& group) { testing::check_order(group, host); });
}

TEST_P(RowMoves, TensorsThatShareRowsAreNotStaged) {
  run(3, [&](Communicator& group) { testing::check_shared_rows(group, host); });
}

TEST_P(RowMoves, MaximumOverRanksIsNotCounted) {
  run(3, [&](Communicator& group) {
    testing::check_maximum(group, host, DType::Float32);
    testing::check_maximum(group, host, DType::Float64);
  });
}

TEST(RowTable, RowsThatStayAreMovesOfTheirOwn) {
  const comm::RowTable table({.owned = {{1, 0, 2}, {0, 5, 40}}, .needed = {{0, 3, 4}, {0, 9, 36}}},
                             0, 2);
  EXPECT_EQ(table.owned.num_rows, 2);
  EXPECT_EQ(table.needed.num_rows, 0);
  EXPECT_THAT(table.own,
              ::testing::ElementsAre(comm::RowTask{5, 3, 4}, comm::RowTask{9, 9, 28},
                                     comm::RowTask{37, 37, 4}, comm::RowTask{41, 41, 4}));
  EXPECT_TRUE(table.on_device.empty());
}

TEST(FindWire, NeedsGaplessRowsAndOneShift) {
  const auto tensor = testing::make_tensor(DType::Float32, {8, 4});
  const auto* data = static_cast<std::byte*>(tensor.view.data);
  const auto found = [&](TensorView view, std::vector<PeerRows> records) {
    return comm::find_wire({&view, 1}, comm::wire_order(records, 2, 3));
  };
  EXPECT_EQ(found(tensor.view, {{0, 3, 2}, {1, 5, 1}}), data + 3 * 16);
  EXPECT_EQ(found(tensor.view, {{1, 3, 2}, {0, 5, 1}}), nullptr);
  EXPECT_EQ(found(tensor.view, {}), nullptr);
  EXPECT_EQ(found(tensor.view.slice(1, 0, 3), {{0, 3, 2}}), nullptr);
}

}  // namespace
}  // namespace magi
