// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "base/half.hpp"
#include "comm/exchange_case.hpp"
#include "comm/ranks.hpp"

// What every backend promises, run over each of them.
namespace magi {
namespace {

using testing::Backend;
using testing::ExchangeCase;
using testing::GroupSetup;
using testing::HostTensor;
using Indices = std::vector<std::int64_t>;

constexpr double kNone = -std::numeric_limits<double>::infinity();

class Conformance : public ::testing::TestWithParam<Backend> {
 protected:
  void run(const GroupSetup& setup, const testing::RankBody& body) {
    testing::run_ranks(GetParam(), setup, body);
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, Conformance,
                         ::testing::Values(Backend::Threads, Backend::Shm, Backend::Bytes,
                                           Backend::Nccl),
                         [](const auto& backend) { return testing::backend_name(backend.param); });

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
  testing::fill(tensor.view,
                [rank](const Indices& at) { return testing::mark(rank, at[0], place_of(at)); });
  return tensor;
}

void expect_cast(const ExchangeCase& test, std::int32_t rank, const TensorView& received) {
  std::int64_t num_wrong = 0;
  testing::for_each_element(received, [&](const Indices& at) {
    const auto& origin =
        test.origin[static_cast<std::size_t>(rank)][static_cast<std::size_t>(at[0])];
    const double expected = testing::mark(origin.owner, origin.row, place_of(at));
    num_wrong += testing::read_element(received, at) != expected;
  });
  EXPECT_EQ(num_wrong, 0) << "rank " << rank;
}

void expect_bytes(const Communicator& communicator, const ExchangeCase& test,
                  std::int64_t row_bytes, bool is_cast) {
  const std::int32_t rank = communicator.rank();
  const CommCounters counters = communicator.counters();
  for (std::int32_t peer = 0; peer < test.num_ranks; ++peer) {
    const std::int64_t rows =
        is_cast ? test.rows_between(rank, peer) : test.rows_between(peer, rank);
    EXPECT_EQ(counters.bytes_to_peer[static_cast<std::size_t>(peer)],
              peer == rank ? 0 : rows * row_bytes)
        << "rank " << rank << " to " << peer;
  }
}

TEST_P(Conformance, CastGivesEveryNeededRow) {
  for (const std::int32_t num_ranks : {1, 2, 4, 8}) {
    const auto seed = static_cast<std::uint64_t>(num_ranks) + 7;
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ExchangeCase test = testing::random_case(
        {.num_ranks = num_ranks, .with_own_rows = true, .idle_rank = num_ranks - 2}, seed);
    run({.num_ranks = num_ranks}, [&](Communicator& group) {
      const std::int32_t rank = group.rank();
      const std::int64_t rows = needed_rows(test, rank);
      // A head slice, a plain tensor and one value per row travel together.
      const HostTensor k = marked(testing::make_head_slice(DType::BFloat16, 40, 3, 8), rank);
      const HostTensor v = marked(testing::make_tensor(DType::Float32, {40, 2, 5}), rank);
      const HostTensor id = marked(testing::make_tensor(DType::Int64, {40}), rank);
      const HostTensor k_in = testing::make_head_slice(DType::BFloat16, rows, 3, 8);
      const HostTensor v_in = testing::make_head_slice(DType::Float32, rows, 2, 5);
      const HostTensor id_in = testing::make_tensor(DType::Int64, {rows});
      const std::array inputs{k.view, v.view, id.view};
      const std::array outputs{k_in.view, v_in.view, id_in.view};
      group.group_cast(inputs, outputs, rows_of(test, rank), {.plan_digest = 5, .stage = 0})
          ->wait_sync();
      expect_cast(test, rank, k_in.view);
      expect_cast(test, rank, v_in.view);
      expect_cast(test, rank, id_in.view);
      expect_bytes(group, test, 3 * 8 * 2 + 2 * 5 * 4 + 8, true);
      EXPECT_EQ(group.counters().casts, 1);
      group.close_sync();
    });
  }
}

TEST_P(Conformance, StagesMayBeWaitedForInAnyOrder) {
  constexpr std::int32_t kStages = 5;
  std::vector<ExchangeCase> stages;
  for (std::uint64_t stage = 0; stage < kStages; ++stage) {
    stages.push_back(testing::random_case({.num_ranks = 3, .owned_rows = 300}, 100 + stage));
  }
  // A window that holds no stage: rows of a later stage must not block an earlier one.
  run({.num_ranks = 3,
       .options = {.deadline = std::chrono::seconds(20), .window_bytes = 64},
       .max_ring_bytes = 3000},
      [&](Communicator& group) {
        const HostTensor own =
            marked(testing::make_tensor(DType::Float32, {300, 2, 8}), group.rank());
        std::vector<HostTensor> received;
        std::vector<std::unique_ptr<PendingExchange>> pending;
        for (std::int32_t stage = 0; stage < kStages; ++stage) {
          const ExchangeCase& test = stages[static_cast<std::size_t>(stage)];
          received.push_back(
              testing::make_tensor(DType::Float32, {needed_rows(test, group.rank()), 2, 8}));
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

/// owner's tensor + partials in rank order, in `Acc`, over the tables of all ranks.
template <typename Acc>
std::vector<Acc> expected_sum(const ExchangeCase& test, std::int32_t owner, std::int64_t width,
                              const std::function<Acc(std::int32_t, std::int64_t)>& partial,
                              Acc start) {
  std::vector<Acc> sums(static_cast<std::size_t>(test.owned_rows * width), start);
  for (std::int32_t rank = 0; rank < test.num_ranks; ++rank) {
    const auto& origins = test.origin[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < origins.size(); ++i) {
      if (origins[i].owner != owner) continue;
      for (std::int64_t e = 0; e < width; ++e) {
        sums[static_cast<std::size_t>(origins[i].row * width + e)] +=
            partial(rank, static_cast<std::int64_t>(i) * width + e);
      }
    }
  }
  return sums;
}

float uneven(std::int32_t rank, std::int64_t i) {
  return std::sin(static_cast<float>(i) * 0.37f + static_cast<float>(rank)) *
         std::exp2(static_cast<float>((i * 7 + rank * 5) % 11));
}

TEST_P(Conformance, SumAddsInRankOrder) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ExchangeCase test = testing::random_case({.num_ranks = 4, .with_own_rows = true}, seed);
    run({.num_ranks = 4}, [&](Communicator& group) {
      const std::int32_t rank = group.rank();
      const HostTensor partial =
          testing::make_tensor(DType::Float32, {needed_rows(test, rank), 2, 3});
      testing::fill(partial.view, [rank](const Indices& at) {
        return static_cast<double>(uneven(rank, (at[0] * 2 + at[1]) * 3 + at[2]));
      });
      const HostTensor own = testing::make_tensor(DType::Float32, {40, 2, 3});
      testing::fill(own.view, [](const Indices&) { return 0.125; });
      group
          .group_reduce({&partial.view, 1}, {&own.view, 1}, rows_of(test, rank), ExchangeKind::Sum,
                        {})
          ->wait_sync();
      const auto expected = expected_sum<float>(test, rank, 6, uneven, 0.125f);
      std::vector<float> seen(expected.size());
      std::memcpy(seen.data(), own.view.data, seen.size() * sizeof(float));
      EXPECT_EQ(seen, expected) << "rank " << rank;  // bitwise: the order of additions is fixed
      expect_bytes(group, test, 24, false);
      group.close_sync();
    });
  }
}

TEST_P(Conformance, SumOf16BitRowsRoundsOnce) {
  const ExchangeCase test = testing::all_to_all_case(5, 3);
  run({.num_ranks = 5}, [&](Communicator& group) {
    const std::int32_t rank = group.rank();
    // 256 + 1 is lost in bfloat16; 256 + 1 + 1 + 1 + 1 is not.
    const HostTensor partial = testing::make_tensor(DType::BFloat16, {needed_rows(test, rank), 4});
    testing::fill(partial.view, [](const Indices&) { return 1; });
    const HostTensor narrow = testing::make_head_slice(DType::BFloat16, 3, 4, 1);
    const HostTensor wide = testing::make_tensor(DType::Float32, {3, 4});
    const TensorView narrow_rows{.data = narrow.view.data,
                                 .dtype = DType::BFloat16,
                                 .rank = 2,
                                 .shape = {3, 4},
                                 .stride = {narrow.view.stride[0], narrow.view.stride[1]}};
    testing::fill(narrow_rows, [](const Indices&) { return 256; });
    testing::fill(wide.view, [](const Indices&) { return 256; });
    const std::array inputs{partial.view, partial.view};
    const std::array outputs{narrow_rows, wide.view};
    group.group_reduce(inputs, outputs, rows_of(test, rank), ExchangeKind::Sum, {})->wait_sync();
    testing::for_each_element(wide.view, [&](const Indices& at) {
      EXPECT_EQ(testing::read_element(wide.view, at), 260);
      EXPECT_EQ(testing::read_element(narrow_rows, at), 260);
    });
    group.close_sync();
  });
}

TEST_P(Conformance, OverlappingReducesApplyInStartOrder) {
  const ExchangeCase test = testing::all_to_all_case(3, 20);
  run({.num_ranks = 3}, [&](Communicator& group) {
    const std::int32_t rank = group.rank();
    const HostTensor own = testing::make_tensor(DType::Float32, {20, 1});
    const HostTensor big = testing::make_tensor(DType::Float32, {needed_rows(test, rank), 1});
    const HostTensor small = testing::make_tensor(DType::Float32, {needed_rows(test, rank), 1});
    testing::fill(big.view, [](const Indices&) { return 0x1p23; });
    testing::fill(small.view, [](const Indices&) { return 1; });
    auto first = group.group_reduce({&small.view, 1}, {&own.view, 1}, rows_of(test, rank),
                                    ExchangeKind::Sum, {.stage = 0});
    auto second = group.group_reduce({&big.view, 1}, {&own.view, 1}, rows_of(test, rank),
                                     ExchangeKind::Sum, {.stage = 1});
    second->wait_sync();
    first->wait_sync();
    // 1 + 1 before the large terms survives; after them it would be rounded away.
    testing::for_each_element(own.view, [&](const Indices& at) {
      EXPECT_EQ(testing::read_element(own.view, at), 0x1p24 + 2);
    });
    group.close_sync();
  });
}

struct LseRow {
  double out = 0;
  double lse = kNone;
};

LseRow merged(LseRow a, LseRow b) {
  if (a.lse == kNone) return b.lse == kNone ? LseRow{} : b;
  if (b.lse == kNone) return a;
  const double lse = std::log(std::exp(a.lse) + std::exp(b.lse));
  return {.out = a.out * std::exp(a.lse - lse) + b.out * std::exp(b.lse - lse), .lse = lse};
}

/// Rows without keys are frequent, and their values are garbage that must not leak.
LseRow lse_partial(std::int32_t rank, std::int64_t row, std::int64_t head) {
  const std::int64_t draw = (rank * 17 + row * 5 + head * 3) % 7;
  if (draw < 3) return {.out = std::numeric_limits<double>::quiet_NaN(), .lse = kNone};
  return {.out = static_cast<double>(draw) - 4.5, .lse = static_cast<double>(draw * draw) - 20};
}

void fill_lse(const TensorView& out, const TensorView& lse,
              const std::function<LseRow(std::int64_t, std::int64_t)>& value) {
  testing::fill(out, [&](const Indices& at) { return value(at[0], at[1]).out; });
  testing::fill(lse, [&](const Indices& at) { return value(at[0], at[1]).lse; });
}

TEST_P(Conformance, LseMergeWeighsRowsAndIgnoresEmptyOnes) {
  for (const DType dtype : {DType::Float64, DType::Float32, DType::BFloat16}) {
    SCOPED_TRACE(dtype_name(dtype));
    const DType lse_type = dtype == DType::Float64 ? DType::Float64 : DType::Float32;
    const double tolerance = dtype == DType::Float64   ? 1e-13
                             : dtype == DType::Float32 ? 1e-5
                                                       : 0.03;
    const ExchangeCase test = testing::random_case({.num_ranks = 4, .with_own_rows = true}, 11);
    run({.num_ranks = 4}, [&](Communicator& group) {
      const std::int32_t rank = group.rank();
      const std::int64_t rows = needed_rows(test, rank);
      const HostTensor part = testing::make_head_slice(dtype, rows, 3, 4);
      const HostTensor part_lse = testing::make_tensor(lse_type, {rows, 3});
      fill_lse(part.view, part_lse.view, [rank](std::int64_t row, std::int64_t head) {
        return lse_partial(rank, row, head);
      });
      const HostTensor out = testing::make_head_slice(dtype, 40, 3, 4);
      const HostTensor lse = testing::make_tensor(lse_type, {40, 3});
      const auto own = [](std::int64_t row, std::int64_t head) {
        return (row + head) % 4 == 0 ? LseRow{.lse = kNone} : LseRow{.out = 1, .lse = -5};
      };
      fill_lse(out.view, lse.view, own);
      const std::array inputs{part.view, part_lse.view}, outputs{out.view, lse.view};
      group.group_reduce(inputs, outputs, rows_of(test, rank), ExchangeKind::LseMerge, {})
          ->wait_sync();
      for (std::int64_t row = 0; row < 40; ++row) {
        for (std::int64_t head = 0; head < 3; ++head) {
          LseRow expected = own(row, head);
          for (std::int32_t r = 0; r < 4; ++r) {
            const auto& origins = test.origin[static_cast<std::size_t>(r)];
            for (std::size_t i = 0; i < origins.size(); ++i) {
              if (origins[i].owner != rank || origins[i].row != row) continue;
              expected = merged(expected, lse_partial(r, static_cast<std::int64_t>(i), head));
            }
          }
          const double seen_lse = testing::read_element(lse.view, {row, head});
          if (expected.lse == kNone) {
            EXPECT_EQ(seen_lse, kNone);
          } else {
            EXPECT_NEAR(seen_lse, expected.lse, 1e-4);
          }
          for (std::int64_t d = 0; d < 4; ++d) {
            EXPECT_NEAR(testing::read_element(out.view, {row, head, d}), expected.out, tolerance);
          }
        }
      }
      group.close_sync();
    });
  }
}

TEST_P(Conformance, LseMergeKeepsNaN) {
  const ExchangeCase test = testing::all_to_all_case(2, 2);
  run({.num_ranks = 2}, [&](Communicator& group) {
    const double nan = std::nan("");
    const double own_lse = group.rank() == 0 ? nan : 1.0;
    const HostTensor out = testing::make_tensor(DType::Float32, {2, 1, 4});
    const HostTensor lse = testing::make_tensor(DType::Float32, {2, 1});
    const HostTensor partial_out = testing::make_tensor(DType::Float32, {2, 1, 4});
    const HostTensor partial_lse = testing::make_tensor(DType::Float32, {2, 1});
    testing::fill(lse.view, [&](const auto&) { return own_lse; });
    testing::fill(partial_lse.view, [&](const auto&) { return own_lse; });
    const std::array inputs{partial_out.view, partial_lse.view};
    const std::array outputs{out.view, lse.view};
    group.group_reduce(inputs, outputs, rows_of(test, group.rank()), ExchangeKind::LseMerge, {})
        ->wait_sync();
    for (std::int64_t row = 0; row < 2; ++row) {
      EXPECT_TRUE(std::isnan(testing::read_element(lse.view, {row, 0}))) << "row " << row;
    }
    group.close_sync();
  });
}

/// An lse of +inf is that of a row whose sink takes all weight.
TEST_P(Conformance, LseMergeKeepsRowsOfInfiniteSinks) {
  const ExchangeCase test = testing::all_to_all_case(2, 2);
  run({.num_ranks = 2}, [&](Communicator& group) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const HostTensor out = testing::make_tensor(DType::Float32, {2, 1, 4});
    const HostTensor lse = testing::make_tensor(DType::Float32, {2, 1});
    const HostTensor partial_out = testing::make_tensor(DType::Float32, {2, 1, 4});
    const HostTensor partial_lse = testing::make_tensor(DType::Float32, {2, 1});
    const bool is_first = group.rank() == 0;
    testing::fill(out.view, [&](const auto&) { return is_first ? 0.0 : 3.0; });
    testing::fill(lse.view, [&](const auto&) { return is_first ? kInfinity : 1.0; });
    // Partials go to both ranks: finite ones from the first, infinite ones from the other.
    testing::fill(partial_out.view, [&](const auto&) { return is_first ? 5.0 : 0.0; });
    testing::fill(partial_lse.view, [&](const auto&) { return is_first ? 2.0 : kInfinity; });
    const std::array inputs{partial_out.view, partial_lse.view};
    const std::array outputs{out.view, lse.view};
    group.group_reduce(inputs, outputs, rows_of(test, group.rank()), ExchangeKind::LseMerge, {})
        ->wait_sync();
    for (std::int64_t row = 0; row < 2; ++row) {
      const double seen = testing::read_element(lse.view, {row, 0});
      const double value = testing::read_element(out.view, {row, 0, 3});
      if (is_first || seen == kInfinity) {
        EXPECT_EQ(seen, kInfinity);
        EXPECT_EQ(value, 0.0);
      } else {
        EXPECT_TRUE(std::isfinite(seen) && std::isfinite(value));
      }
    }
    group.close_sync();
  });
}

TEST_P(Conformance, TransfersLargerThanTheWindowGoThroughInPieces) {
  const ExchangeCase test = testing::all_to_all_case(3, 5000);
  // Many rows of 600 bytes, and few rows that are larger than a slot.
  for (const std::int64_t width : {150, 5000}) {
    const std::int64_t rows = width == 150 ? 400 : 12;
    const ExchangeCase sized = testing::all_to_all_case(3, rows);
    for (const std::size_t ring : {std::size_t{1}, std::size_t{100'000}, std::size_t{64} << 20}) {
      run({.num_ranks = 3,
           .options = {.deadline = std::chrono::seconds(20), .window_bytes = 1},
           .max_ring_bytes = ring},
          [&](Communicator& group) {
            const std::int32_t rank = group.rank();
            const HostTensor own =
                marked(testing::make_tensor(DType::Float32, {rows, width}), rank);
            const HostTensor received =
                testing::make_tensor(DType::Float32, {needed_rows(sized, rank), width});
            group.group_cast({&own.view, 1}, {&received.view, 1}, rows_of(sized, rank), {})
                ->wait_sync();
            expect_cast(sized, rank, received.view);
            expect_bytes(group, sized, width * 4, true);
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
  const ExchangeCase test = testing::random_case({.num_ranks = 3, .idle_rank = 1}, 5);
  run({.num_ranks = 3}, [&](Communicator& group) {
    const std::int32_t rank = group.rank();
    const HostTensor own = marked(testing::make_tensor(DType::Float32, {40, 4}), rank);
    const HostTensor received = testing::make_tensor(DType::Float32, {needed_rows(test, rank), 4});
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
    const CommError error =
        testing::catch_comm_error([&] { check_plan_digest_sync(group, digest); });
    EXPECT_EQ(error.failure(), CommFailure::PlanMismatch);
    EXPECT_STREQ(error.what(),
                 "ranks hold different plans: rank 0 has plan 0x0000000000000123, rank 2 has plan "
                 "0x0000000000000abc");
    group.close_sync();
  });
}

}  // namespace
}  // namespace magi
