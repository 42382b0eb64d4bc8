// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <new>
#include <numeric>
#include <thread>

#include "base/half.hpp"
#include "magi/runtime.hpp"
#include "plan/placements.hpp"
#include "runtime/failing_member.hpp"
#include "support/comm_error.hpp"

namespace magi {
namespace {

/// Bytes of a tensor [rows, 3, 2] of any type whose elements are all different, with gaps between
/// rows, heads and elements where asked for.
struct Sample {
  Sample(DType dtype, std::int64_t rows, bool has_gaps) {
    view = contiguous_view(nullptr, dtype, {rows, 3, 2});
    if (has_gaps) view.stride = {20, 6, 2, 0};
    bytes.assign(static_cast<std::size_t>(rows * view.stride[0] + 1) * dtype_bytes(dtype),
                 std::byte{0x7e});
    view.data = bytes.data();
  }

  std::byte* element(std::int64_t row, std::int64_t i) {
    const std::int64_t offset =
        row * view.stride[0] + (i / 2) * view.stride[1] + (i % 2) * view.stride[2];
    return bytes.data() + static_cast<std::size_t>(offset) * dtype_bytes(view.dtype);
  }
  void set_row(std::int64_t row, std::int32_t value) {
    for (std::int64_t i = 0; i < 6; ++i) set(row, i, value * 6 + static_cast<std::int32_t>(i));
  }
  void set(std::int64_t row, std::int64_t i, std::int32_t value) {
    const auto bits = static_cast<std::uint16_t>(value);
    std::memset(element(row, i), 0, dtype_bytes(view.dtype));
    std::memcpy(element(row, i), &bits, sizeof(bits));
  }
  std::int32_t row_value(std::int64_t row) {
    std::uint16_t first = 0;
    for (std::int64_t i = 0; i < 6; ++i) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, element(row, i), sizeof(bits));
      if (i == 0) first = bits;
      EXPECT_EQ(bits, first + i) << "row " << row;
    }
    return first / 6;
  }

  TensorView view;
  std::vector<std::byte> bytes;
};

constexpr DType kAllTypes[] = {DType::Float64,  DType::Float32, DType::Float16,
                               DType::BFloat16, DType::Int32,   DType::Int64};

TEST(Dispatch, TakesTheOwnRowsAndPadsTheRest) {
  std::mt19937_64 random(11);
  for (int trial = 0; trial < 60; ++trial) {
    const Placement placement = random_placement(random);
    const auto valid = std::uniform_int_distribution<std::int32_t>(0, placement.num_rows)(random);
    const DType dtype = kAllTypes[trial % 6];
    SCOPED_TRACE(::testing::Message() << "seed 11, trial " << trial << ", " << dtype_name(dtype));
    Sample global(dtype, valid, trial % 2 == 0);
    for (std::int32_t row = 0; row < valid; ++row) global.set_row(row, row + 1);
    for (std::int32_t rank = 0; rank < placement.num_ranks; ++rank) {
      const auto rows = global_rows(placement, rank);
      Sample local(dtype, static_cast<std::int64_t>(rows.size()), trial % 3 == 0);
      dispatch(global.view, placement, rank, local.view);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const auto row = static_cast<std::int64_t>(i);
        if (rows[i] < valid) {
          EXPECT_EQ(local.row_value(row), rows[i] + 1);
        } else {
          for (std::int64_t e = 0; e < 6; ++e) EXPECT_EQ(*local.element(row, e), std::byte{0});
        }
      }
    }
  }
}

TEST(Dispatch, PadsWithTheValueAskedFor) {
  const Placement placement = placement_from_chunks(4, 2, 2, {0, 1});
  HostTensor<std::int64_t> labels({3});
  std::iota(labels.elements().begin(), labels.elements().end(), 5);
  HostTensor<std::int64_t> local({2});
  dispatch(labels, placement, 1, local, -100);
  EXPECT_EQ(local.elements()[0], 7);
  EXPECT_EQ(local.elements()[1], -100);
}

TEST(Undispatch, GivesEveryRankTheWholeSequence) {
  std::mt19937_64 random(12);
  for (int trial = 0; trial < 30; ++trial) {
    const Placement placement = random_placement(random);
    const auto valid = std::uniform_int_distribution<std::int32_t>(0, placement.num_rows)(random);
    const DType dtype = kAllTypes[trial % 6];
    SCOPED_TRACE(::testing::Message() << "seed 12, trial " << trial << ", " << dtype_name(dtype));
    run_ranks(placement.num_ranks, [&](Communicator& communicator) {
      const auto rows = global_rows(placement, communicator.rank());
      Sample local(dtype, static_cast<std::int64_t>(rows.size()), trial % 3 == 0);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        local.set_row(static_cast<std::int64_t>(i), rows[i]);
      }
      Sample global(dtype, valid, trial % 2 == 0);
      undispatch(local.view, placement, communicator, global.view);
      for (std::int32_t row = 0; row < valid; ++row) EXPECT_EQ(global.row_value(row), row);
    });
  }
}

TEST(UndispatchBackward, KeepsOwnRowsOfReplicatedGradients) {
  const Placement placement = placement_from_chunks(7, 2, 2, {1, 0, 1, 0});
  run_ranks(2, [&](Communicator& communicator) {
    HostTensor<float> global({6, 1});
    std::iota(global.elements().begin(), global.elements().end(), 1.0f);
    const auto rows = global_rows(placement, communicator.rank());
    HostTensor<float> local({static_cast<std::int64_t>(rows.size()), 1});
    undispatch_backward(global, placement, communicator, UndispatchGradient::Replicated, local);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(local.elements()[i], rows[i] < 6 ? static_cast<float>(rows[i] + 1) : 0.0f);
    }
    EXPECT_EQ(communicator.counters().casts + communicator.counters().reduces, 0);
  });
}

TEST(UndispatchBackward, SumsPartialGradientsOfAllRanks) {
  std::mt19937_64 random(13);
  for (int trial = 0; trial < 20; ++trial) {
    const Placement placement = random_placement(random);
    const auto valid = std::uniform_int_distribution<std::int32_t>(0, placement.num_rows)(random);
    SCOPED_TRACE(::testing::Message() << "seed 13, trial " << trial);
    run_ranks(placement.num_ranks, [&](Communicator& communicator) {
      // Rank r's part of row i is (r + 1) * 2^i mod 2^6: the sum is exact in bfloat16.
      HostTensor<std::uint16_t> global({valid, 2});
      const auto part = [&](std::int32_t rank, std::int32_t row) {
        return static_cast<float>((rank + 1) << (row % 3));
      };
      for (std::int32_t row = 0; row < valid; ++row) {
        for (std::size_t i = 0; i < 2; ++i) {
          global.elements()[2 * static_cast<std::size_t>(row) + i] =
              float_to_bfloat16(part(communicator.rank(), row));
        }
      }
      const auto rows = global_rows(placement, communicator.rank());
      HostTensor<std::uint16_t> local({static_cast<std::int64_t>(rows.size()), 2});
      undispatch_backward(global, placement, communicator, UndispatchGradient::Partial, local);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        float expected = 0;
        for (std::int32_t rank = 0; rank < placement.num_ranks && rows[i] < valid; ++rank) {
          expected += part(rank, rows[i]);
        }
        EXPECT_EQ(bfloat16_to_float(local.elements()[2 * i]), expected);
      }
    });
  }
}

TEST(Roll, RollsTheSequenceAndBack) {
  std::mt19937_64 random(14);
  for (int trial = 0; trial < 80; ++trial) {
    const Placement placement = random_placement(random);
    const auto valid = std::uniform_int_distribution<std::int32_t>(0, placement.num_rows)(random);
    const auto shift = std::uniform_int_distribution<std::int64_t>(-200, 200)(random);
    const DType dtype = kAllTypes[trial % 6];
    SCOPED_TRACE(::testing::Message() << "seed 14, trial " << trial << ", shift " << shift);
    run_ranks(placement.num_ranks, [&](Communicator& communicator) {
      const auto rows = global_rows(placement, communicator.rank());
      const auto num_rows = static_cast<std::int64_t>(rows.size());
      Sample local(dtype, num_rows, trial % 3 == 0);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        local.set_row(static_cast<std::int64_t>(i), rows[i]);
      }
      Sample rolled(dtype, num_rows, trial % 2 == 0);
      roll(local.view, placement, valid, shift, communicator, rolled.view);
      Sample back(dtype, num_rows, false);
      roll(rolled.view, placement, valid, -shift, communicator, back.view);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const auto row = static_cast<std::int64_t>(i);
        const std::int64_t source =
            rows[i] < valid ? ((rows[i] - shift) % valid + valid) % valid : rows[i];
        EXPECT_EQ(rolled.row_value(row), source);
        EXPECT_EQ(back.row_value(row), rows[i]);
      }
    });
  }
}

TEST(Roll, MovesOnlyRowsThatChangeRank) {
  const Placement placement = placement_from_chunks(64, 8, 2, {0, 0, 0, 0, 1, 1, 1, 1});
  run_ranks(2, [&](Communicator& communicator) {
    const HostTensor<float> local({32, 4});
    const HostTensor<float> out({32, 4});
    roll(local, placement, 64, 1, communicator, out);
    EXPECT_EQ(
        communicator.counters().bytes_to_peer[static_cast<std::size_t>(1 - communicator.rank())],
        4 * static_cast<std::int64_t>(sizeof(float)));
  });
}

TEST(Dispatch, RefusesPaddingThatIntegersCannotHold) {
  const Placement placement = placement_from_chunks(4, 4, 1, {0});
  const HostTensor<std::int32_t> global({3, 1});
  const HostTensor<std::int32_t> local({4, 1});
  for (const double value : {std::nan(""), 1e10, -1e10, 0.5}) {
    EXPECT_THROW(dispatch(global, placement, 0, local, value), InvalidArgument) << value;
  }
  const HostTensor<std::int64_t> wide_global({3, 1});
  const HostTensor<std::int64_t> wide_local({4, 1});
  EXPECT_THROW(dispatch(wide_global, placement, 0, wide_local, 0x1p63), InvalidArgument);
  dispatch(wide_global, placement, 0, wide_local, -0x1p63);
  EXPECT_EQ(wide_local.elements()[3], std::numeric_limits<std::int64_t>::min());
}

TEST(Shards, ARankThatFailsWakesTheOthers) {
  const Placement placement = placement_from_chunks(8, 2, 2, {0, 1, 1, 0});
  using Call = std::function<void(Communicator&)>;
  const Call calls[] = {
      [&](Communicator& group) {
        undispatch(HostTensor<float>({4, 1}), placement, group, HostTensor<float>({8, 1}));
      },
      [&](Communicator& group) {
        undispatch_backward(HostTensor<float>({8, 1}), placement, group,
                            UndispatchGradient::Partial, HostTensor<float>({4, 1}));
      },
      [&](Communicator& group) {
        roll(HostTensor<float>({4, 1}), placement, 8, 1, group, HostTensor<float>({4, 1}));
      }};
  for (const Call& call : calls) {
    const auto group = make_thread_group(2, {.deadline = std::chrono::seconds(3)});
    std::jthread other([&] {
      testing::FailingMember failing(*group[1]);
      EXPECT_THROW(call(failing), std::bad_alloc);
    });
    const CommError error = testing::catch_comm_error([&] { call(*group[0]); });
    EXPECT_EQ(error.failure(), CommFailure::Aborted) << error.what();
  }
}

TEST(Shards, RefuseTensorsThatDoNotFit) {
  const Placement placement = placement_from_chunks(8, 2, 2, {0, 1, 1, 0});
  const HostTensor<float> global({8, 3});
  const HostTensor<float> local({4, 3});
  EXPECT_THROW(dispatch(global, placement, 2, local), InvalidArgument);
  EXPECT_THROW(dispatch(HostTensor<float>({9, 3}), placement, 0, local), InvalidArgument);
  EXPECT_THROW(dispatch(global, placement, 0, HostTensor<float>({3, 3})), InvalidArgument);
  EXPECT_THROW(dispatch(global, placement, 0, HostTensor<float>({4, 2})), InvalidArgument);
  EXPECT_THROW(dispatch(global, placement, 0, HostTensor<double>({4, 3})), InvalidArgument);
  EXPECT_THROW(dispatch(contiguous_view(nullptr, DType::Float32, {8, 3}), placement, 0, local),
               InvalidArgument);
  TensorView on_device = global;
  on_device.device = 0;
  EXPECT_THROW(dispatch(on_device, placement, 0, local), InvalidArgument);
  const auto alone = make_thread_group(1);
  EXPECT_THROW(undispatch(local, placement, *alone[0], global), InvalidArgument);
  const Placement single = placement_from_chunks(4, 4, 1, {0});
  EXPECT_THROW(roll(local, single, 5, 1, *alone[0], HostTensor<float>({4, 3})), InvalidArgument);
  EXPECT_THROW(roll(local, single, 4, 1, *alone[0], local), InvalidArgument);
  EXPECT_THROW(roll(local, single, 4, 1, *alone[0], HostTensor<float>({4, 2})), InvalidArgument);
  const HostTensor<std::int32_t> integers({4, 3});
  EXPECT_THROW(undispatch_backward(integers, single, *alone[0], UndispatchGradient::Partial,
                                   HostTensor<std::int32_t>({4, 3})),
               InvalidArgument);
}

}  // namespace
}  // namespace magi
