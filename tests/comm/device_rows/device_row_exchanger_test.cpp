// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <utility>

#include "comm/device_memory.hpp"
#include "comm/ranks.hpp"
#include "comm/rows/row_exchanger.hpp"
#include "cuda/device.hpp"
#include "support/gpu/gate.hpp"
#include "support/gpu/gpu_test.hpp"

// Moves of rows in device memory, between threads that share the GPU: through buffers of the
// threads' group, and straight into each other's memory.
namespace magi::test {
namespace {

/// The group itself, or its ranks over nvlink.
class Transport {
 public:
  Transport(Communicator& group, bool is_nvlink) : group_(&group) {
    if (!is_nvlink) return;
    nvlink_ = make_nvlink_group({std::shared_ptr<void>(), &group}, 0,
                                {.deadline = std::chrono::seconds(10)});
    group_ = nvlink_.get();
  }
  Communicator& group() { return *group_; }

 private:
  std::unique_ptr<Communicator> nvlink_;
  Communicator* group_;
};

void run(bool is_nvlink, std::int32_t num_ranks,
         const std::function<void(Communicator&, const testing::TestMemory&)>& body) {
  testing::run_ranks(testing::Backend::Threads, {.num_ranks = num_ranks}, [&](Communicator& group) {
    const DeviceScope scope(0);
    const Stream stream;
    const testing::TestMemory memory = testing::device_memory(0, stream);
    Transport transport(group, is_nvlink);
    body(transport.group(), memory);
    stream.wait_sync();
  });
}

class DeviceRowChecks : public GpuTest,
                        public ::testing::WithParamInterface<std::tuple<bool, testing::RowCheck>> {
};

INSTANTIATE_TEST_SUITE_P(Transports, DeviceRowChecks,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::ValuesIn(testing::row_checks())),
                         [](const auto& test) {
                           const bool is_nvlink = std::get<0>(test.param);
                           return std::string(is_nvlink ? "nvlink_" : "threads_") +
                                  std::get<1>(test.param).name;
                         });

TEST_P(DeviceRowChecks, GiveWhatTheyMust) {
  const auto& [is_nvlink, check] = GetParam();
  // Over nvlink plans take memory for tensors that share rows.
  if (is_nvlink && check.run == testing::check_shared_rows) return;
  for (const std::int32_t num_ranks : check.group_sizes) run(is_nvlink, num_ranks, check.run);
}

class DeviceRowMoves : public GpuTest, public ::testing::WithParamInterface<bool> {};

/// A cast that comes back goes to the caller's memory and reads what casts into an exchanger's own
/// memory do not. None of it is copied by the move.
TEST_P(DeviceRowMoves, WhatIsPreparedForIsOnTheDevice) {
  run(GetParam(), 2, [](Communicator& group, const testing::TestMemory&) {
    const std::int32_t peer = 1 - group.rank();
    const comm::RowTable table({.owned = {{peer, 0, 8}}, .needed = {{peer, 0, 8}}}, group.rank(),
                               2);
    const DeviceAllocator pool;
    const auto exchanger = comm::make_row_exchanger(group, 0, pool, {.has_passes = true});
    exchanger->prepare(table, {.kind = ExchangeKind::Cast, .is_in_place = false}, {});
    EXPECT_TRUE(table.on_device.contains(0));
  });
}

TEST_P(DeviceRowMoves, GivenUpMovesLeaveTheGroupUsable) {
  const auto test = testing::all_to_all_case(2, 1000);
  run(GetParam(), 2, [&](Communicator& group, const testing::TestMemory& memory) {
    const auto rank = static_cast<std::size_t>(group.rank());
    testing::Twin from(memory, testing::make_tensor(DType::Float32, {1000, 64}));
    testing::Twin to(memory, testing::make_head_slice(DType::Float32, 1000, 1, 64));
    const TensorView flat{.data = to.view().data,
                          .dtype = DType::Float32,
                          .device = 0,
                          .rank = 2,
                          .shape = {1000, 64},
                          .stride = {to.view().stride[0], 1}};
    const auto exchange =
        group.group_cast({&from.view(), 1}, {&flat, 1}, test.ranks[rank], {}, memory.stream);
    for (int i = 0; i < 20; ++i) {
      group.group_cast({&from.view(), 1}, {&flat, 1}, test.ranks[rank], {}, memory.stream);
    }
    exchange->wait_sync();
    testing::check_order(group, memory);
  });
}

/// Tables that calls make for themselves, of few rows and of more than one launch brings, reach the
/// device without a wait of the host.
TEST_P(DeviceRowMoves, CallsWaitForNoStream) {
  for (const std::int32_t num_rows : {8, 6000}) {
    run(GetParam(), 2, [num_rows](Communicator& group, const testing::TestMemory& memory) {
      const std::int32_t peer = 1 - group.rank();
      RowExchange rows;  // every other row, so that each is a task by itself
      for (std::int32_t row = 0; row < num_rows; row += 2) {
        rows.owned.push_back({peer, row, 1});
        rows.needed.push_back({peer, row + 1, 1});
      }
      const auto value = [](const auto& at) { return static_cast<double>(4 * at[0] + at[1]); };
      testing::HostTensor parts = testing::make_tensor(DType::Float32, {num_rows, 4});
      testing::fill(parts.view, value);
      testing::HostTensor sums = testing::make_tensor(DType::Float32, {num_rows, 4});
      testing::fill(sums.view, [](const auto&) { return 0.0; });
      testing::Twin from(memory, std::move(parts)), to(memory, std::move(sums));
      const auto add = [&] {
        group
            .group_reduce({&from.view(), 1}, {&to.view(), 1}, rows, ExchangeKind::Sum, {},
                          memory.stream)
            ->wait_sync();
      };
      add();  // kernels are loaded, which waits
      Gate gate(static_cast<cudaStream_t>(memory.stream));
      for (int i = 0; i < 3; ++i) add();
      EXPECT_FALSE(gate.has_given_up) << "a call waited for its stream";
      gate.is_open = true;
      const TensorView& seen = to.fetched();
      std::int64_t num_wrong = 0;
      testing::for_each_element(seen, [&](auto at) {
        const double read = testing::read_element(seen, at);
        const bool is_added = at[0]++ % 2 == 0;  // from the row behind
        num_wrong += read != (is_added ? 4 * value(at) : 0.0);
      });
      EXPECT_EQ(num_wrong, 0) << num_rows << " rows";
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, DeviceRowMoves, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "nvlink" : "threads"; });

}  // namespace
}  // namespace magi::test
