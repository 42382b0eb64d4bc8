// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "comm/device_memory.hpp"
#include "comm/ranks.hpp"
#include "comm/rows/row_exchanger.hpp"
#include "cuda/device.hpp"
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

class DeviceRowMoves : public GpuTest, public ::testing::WithParamInterface<bool> {
 protected:
  static void run(std::int32_t num_ranks,
                  const std::function<void(Communicator&, const testing::TestMemory&)>& body) {
    testing::run_ranks(testing::Backend::Threads, {.num_ranks = num_ranks},
                       [&](Communicator& group) {
                         const DeviceScope scope(0);
                         const Stream stream;
                         const testing::TestMemory memory = testing::device_memory(0, stream);
                         Transport transport(group, GetParam());
                         body(transport.group(), memory);
                         stream.wait_sync();
                       });
  }
};

TEST_P(DeviceRowMoves, CastsBringEveryNeededRow) {
  for (const std::int32_t num_ranks : {1, 2, 4}) {
    const auto test = testing::random_case({.num_ranks = num_ranks, .with_own_rows = true}, 3);
    run(num_ranks, [&](Communicator& group, const testing::TestMemory& memory) {
      testing::check_cast(group, test, memory);
    });
  }
}

TEST_P(DeviceRowMoves, SumsAddInRankOrder) {
  const auto test = testing::random_case({.num_ranks = 4, .with_own_rows = true}, 4);
  constexpr std::pair<DType, DType> kTypes[] = {
      {DType::Float32, DType::Float32}, {DType::BFloat16, DType::Float32},
      {DType::Float16, DType::Float32}, {DType::BFloat16, DType::BFloat16},
      {DType::Float16, DType::Float16}, {DType::Float64, DType::Float64},
      {DType::Float32, DType::Float64}};
  run(4, [&](Communicator& group, const testing::TestMemory& memory) {
    for (const auto& [wire, sum] : kTypes) testing::check_sum(group, test, memory, wire, sum);
  });
}

TEST_P(DeviceRowMoves, LastSumsAreRoundedOnceIntoOtherTensors) {
  const auto test = testing::random_case({.num_ranks = 4, .with_own_rows = true}, 19);
  run(4, [&](Communicator& group, const testing::TestMemory& memory) {
    for (const DType type : {DType::BFloat16, DType::Float16}) {
      for (const auto own_rows : {testing::OwnRows::All, testing::OwnRows::Summed}) {
        testing::check_rounded_sum(group, test, memory, type, own_rows);
      }
    }
  });
}

TEST_P(DeviceRowMoves, MergesWeighRowsAndIgnoreEmptyOnes) {
  const auto test = testing::random_case({.num_ranks = 4, .with_own_rows = true}, 11);
  constexpr std::pair<DType, DType> kTypes[] = {{DType::Float32, DType::Float32},
                                                {DType::BFloat16, DType::Float32},
                                                {DType::BFloat16, DType::BFloat16},
                                                {DType::Float16, DType::Float16},
                                                {DType::Float64, DType::Float64}};
  run(4, [&](Communicator& group, const testing::TestMemory& memory) {
    for (const auto& [wire, out] : kTypes) testing::check_merge(group, test, memory, wire, out);
  });
}

TEST_P(DeviceRowMoves, SumsApplyInStartOrderWhateverIsAwaited) { run(3, testing::check_order); }

TEST_P(DeviceRowMoves, TensorsThatShareRowsAreNotStaged) {
  if (!GetParam()) run(3, testing::check_shared_rows);  // over nvlink plans take such memory
}

TEST_P(DeviceRowMoves, MaximumOverRanksIsNotCounted) {
  run(3, [](Communicator& group, const testing::TestMemory& memory) {
    testing::check_maximum(group, memory, DType::Float32);
  });
}

/// A cast that comes back goes to the caller's memory and reads what casts into an exchanger's own
/// memory do not. None of it is copied by the move.
TEST_P(DeviceRowMoves, WhatIsPreparedForIsOnTheDevice) {
  run(2, [](Communicator& group, const testing::TestMemory&) {
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
  run(2, [&](Communicator& group, const testing::TestMemory& memory) {
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

INSTANTIATE_TEST_SUITE_P(Transports, DeviceRowMoves, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "nvlink" : "threads"; });

}  // namespace
}  // namespace magi::test
