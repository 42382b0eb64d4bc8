// SPDX-License-Identifier: Apache-2.0
#include "comm/rows/row_exchanger.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/ranks.hpp"
#include "comm/row_moves.hpp"
#include "comm/rows/row_memory.hpp"

// Moves of rows in host memory over each backend.
namespace magi::testing {
namespace {

class RowMoves : public ::testing::TestWithParam<std::tuple<Backend, RowCheck>> {};

INSTANTIATE_TEST_SUITE_P(Backends, RowMoves,
                         ::testing::Combine(::testing::Values(Backend::Threads, Backend::Shm,
                                                              Backend::Bytes, Backend::Nccl),
                                            ::testing::ValuesIn(row_checks())),
                         [](const auto& test) {
                           return backend_name(std::get<0>(test.param)) + "_" +
                                  std::get<1>(test.param).name;
                         });

TEST_P(RowMoves, GiveWhatTheyMust) {
  const auto& [backend, check] = GetParam();
  const TestMemory host;
  for (const std::int32_t num_ranks : check.group_sizes) {
    run_ranks(backend, {.num_ranks = num_ranks}, [&, run = check.run](Communicator& group) {
      run(group, host);
      group.close_sync();
    });
  }
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
  const auto tensor = make_tensor(DType::Float32, {8, 4});
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
}  // namespace magi::testing
