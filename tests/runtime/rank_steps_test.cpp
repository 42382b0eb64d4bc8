// SPDX-License-Identifier: Apache-2.0
#include "runtime/rank_steps.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "comm/nvlink/peer_places.hpp"
#include "magi/mask_builders.hpp"

namespace magi {
namespace {

constexpr std::int32_t kRanks = 4;

Plan causal_plan(WorkMode work, std::int32_t degree) {
  PlanConfig config;
  config.num_ranks = kRanks;
  config.num_heads_q = config.num_heads_kv = 8;
  config.work = work;
  config.head_shares = work == WorkMode::Heads ? kRanks : 0;
  config.overlap_degree = degree;
  return make_plan({256, 256, {band_slice({0, 256}, {0, 256}, MaskType::Causal)}}, config);
}

/// Which calls have rows under way beside them: a letter for each, 'f' in the forward, 'b' in the
/// backward, 'B' in both, '-' in none; those that see no key in brackets.
std::string beside(const RankSteps& steps) {
  std::string text;
  for (const AttendCall& call : steps.attends) {
    const char letter = "-fbB"[call.is_beside[0] + 2 * call.is_beside[1]];
    text += call.slices.empty() ? std::string{'(', letter, ')'} : std::string{letter};
  }
  return text;
}

TEST(RankSteps, AttendsKnowWhetherRowsAreUnderWayBesideThem) {
  for (std::int32_t rank = 0; rank < kRanks; ++rank) {
    const auto of_keys = [&](std::int32_t degree) {
      const Plan plan = causal_plan(WorkMode::Keys, degree);
      const RankSteps steps(plan, rank);
      EXPECT_EQ(steps.has_work_beside_exchange(), degree > 0);
      return beside(steps);
    };
    EXPECT_EQ(of_keys(0), "-");
    EXPECT_EQ(of_keys(1), "B-") << "nothing is left when the last keys have come";
    EXPECT_EQ(of_keys(2), "BBb") << "gradients of the first stage are on their way then";
  }
}

TEST(RankSteps, ShortExchangesOfStagesThatTakeTurnsRunBetweenAttends) {
  PlanConfig config = causal_plan(WorkMode::Keys, 4).config;
  config.max_exchange_bytes = 256 * 8 * 256 * 6 / 2;
  const Mask mask{256, 256, {band_slice({0, 256}, {0, 256}, MaskType::Causal)}};
  for (const double bytes_per_second : {1e6, 1e18}) {
    config.cost.bytes_per_second = bytes_per_second;
    const Plan plan = make_plan(mask, config);
    ASSERT_EQ(plan.stages_in_flight, 2);
    EXPECT_EQ(beside(RankSteps(plan, 1)), bytes_per_second < 1e9 ? "BBBBb" : "-----");
  }
}

TEST(RankSteps, OneAttendThatWaitsForKeysOfOthersIsAnArrival) {
  for (std::int32_t rank = 0; rank < kRanks; ++rank) {
    const Plan plan = causal_plan(WorkMode::Keys, 0);
    const RankSteps steps(plan, rank);
    const SegmentRows& rows = steps.rows_of_keys(steps.attends.front());
    EXPECT_TRUE(steps.is_arrival());
    EXPECT_EQ(rows.own, (Range{0, steps.shares.rows_k})) << "the forward reads them in place";
    EXPECT_FALSE(RankSteps(causal_plan(WorkMode::Keys, 1), rank).is_arrival());
    EXPECT_FALSE(RankSteps(causal_plan(WorkMode::Queries, 1), rank).is_arrival());
  }
}

TEST(RankSteps, ARankThatNeedsNoKeysOfOthersIsNoArrivalAndSendsItsOwnBeforeItAttends) {
  PlanConfig config{.num_ranks = kRanks, .num_heads_q = 1, .num_heads_kv = 1};
  config.overlap_degree = 0;
  config.placement = {.algorithm = PlacementAlgorithm::Zigzag, .chunk_size = 64};
  // Only the rows of one rank see others.
  const Plan plan = make_plan({512,
                               512,
                               {band_slice({0, 64}, {0, 512}, MaskType::Full),
                                band_slice({64, 128}, {64, 128}, MaskType::Full)}},
                              config);
  std::int32_t num_arrivals = 0;
  for (std::int32_t rank = 0; rank < kRanks; ++rank) {
    const RankSteps steps(plan, rank);
    num_arrivals += steps.is_arrival() ? 1 : 0;
    EXPECT_FALSE(steps.has_work_beside_exchange()) << "rank " << rank;
  }
  EXPECT_EQ(num_arrivals, 1);
}

TEST(RankSteps, OneStageOfSharedHeadsLeavesNothingBesideItsAttend) {
  for (const std::int32_t degree : {1, 2}) {
    const Plan plan = causal_plan(WorkMode::Heads, degree);
    const Plan flat = flat_plan(plan);
    for (std::int32_t rank = 0; rank < kRanks; ++rank) {
      const RankSteps steps(flat, rank, HeadShares(plan, rank));
      EXPECT_EQ(beside(steps), degree == 1 ? "(B)(B)(B)(B)-" : "(B)(B)(B)(B)Bb");
      EXPECT_EQ(steps.has_work_beside_exchange(), degree > 1);
    }
  }
}

TEST(RankSteps, AttendsOfASharesOwnQueriesWithoutKeysAreIdleAndHaveNoKeyRows) {
  const Plan plan = causal_plan(WorkMode::Heads, 1);
  const Plan flat = flat_plan(plan);
  const RankSteps steps(flat, 1, HeadShares(plan, 1));
  ASSERT_EQ(steps.attends.size(), 1U + kRanks);
  for (std::int32_t share = 0; share < kRanks; ++share) {
    const AttendCall& call = steps.attends[static_cast<std::size_t>(share)];
    EXPECT_TRUE(call.is_idle);
    EXPECT_TRUE(call.k_rows.empty());
    EXPECT_EQ(call.q_rows, (Range{64 * share, 64 * share + 64}));
  }
  EXPECT_FALSE(steps.attends.back().is_idle);
  EXPECT_EQ(steps.attends.back().k_rows, (Range{0, 256}));
}

bool returns_whole(const Plan& plan, Space space) {
  const Plan flat = flat_plan(plan);
  const bool is_whole = RankSteps(flat, 0, HeadShares(plan, 0)).returns_whole(space);
  for (std::int32_t rank = 1; rank < kRanks; ++rank) {
    const RankSteps steps(flat, rank, HeadShares(plan, rank));
    EXPECT_EQ(steps.returns_whole(space), is_whole) << "rank " << rank;
  }
  return is_whole;
}

TEST(RankSteps, WhatOneAttendMakesOfARowAndHeadReturnsWhole) {
  for (const Space space : {Space::Queries, Space::Keys}) {
    for (const std::int32_t degree : {0, 1, 2}) {
      EXPECT_TRUE(returns_whole(causal_plan(WorkMode::Heads, degree), space));
      EXPECT_FALSE(returns_whole(causal_plan(WorkMode::Keys, degree), space));
      EXPECT_FALSE(returns_whole(causal_plan(WorkMode::Queries, degree), space));
    }
    Plan twice = causal_plan(WorkMode::Heads, 1);
    const auto of_space = [space](const Transfer& t) { return t.space == space; };
    const Transfer again = *std::ranges::find_if(twice.transfers, of_space);
    twice.transfers.push_back(again);
    EXPECT_FALSE(returns_whole(twice, space)) << "a row that two ranks have";
    Plan merging = causal_plan(WorkMode::Heads, 1);
    merging.ranks[2].attends.push_back(merging.ranks[2].attends.back());
    EXPECT_FALSE(returns_whole(merging, space)) << "two attention calls of one row";
  }
}

TEST(RankSteps, SharesOfSeveralGroupsReturnParts) {
  PlanConfig config = causal_plan(WorkMode::Heads, 1).config;
  config.head_shares = 2;
  const Plan plan = make_plan({256, 256, {band_slice({0, 256}, {0, 256}, MaskType::Full)}}, config);
  EXPECT_FALSE(returns_whole(plan, Space::Keys) && returns_whole(plan, Space::Queries));
}

/// Wire rows that others write at a rank and those that it puts behind them itself, of partials of
/// a key segment; and that they lie where those of other ranks have room.
std::int64_t partial_rows(const Plan& plan, std::int32_t rank, std::int32_t segment) {
  const RankSteps steps(plan, rank);
  const comm::RowTable& table = steps.k_segments[static_cast<std::size_t>(segment)].returning();
  for (std::int32_t other = 0; other < kRanks; ++other) {
    const RankSteps theirs(plan, other);
    const auto places =
        comm::peer_places(theirs.everyones_rows(Space::Keys, segment, false)(), other);
    for (const comm::PushTask& run : places.needed_runs) {
      if (run.peer != rank || other == rank) continue;
      EXPECT_LE(run.remote_row + run.num_rows, table.owned.num_rows) << "from rank " << other;
    }
  }
  return table.owned.num_rows + table.needed.num_own_rows;
}

TEST(RankSteps, RanksAgreeOnTheMostPartialsOfOne) {
  const std::vector<std::int32_t> documents{0, 70, 100, 230, 256};
  const std::vector<Mask> masks{{256, 256, {band_slice({0, 256}, {0, 256}, MaskType::Causal)}},
                                {256, 256, {band_slice({0, 256}, {0, 256}, MaskType::Full)}},
                                {256, 256, {band_slice({0, 64}, {0, 64}, MaskType::Full)}},
                                mask_from_cu_seqlens(documents, documents, {.is_causal = true})};
  for (const Mask& mask : masks) {
    for (const WorkMode work : {WorkMode::Keys, WorkMode::Queries}) {
      for (const std::int32_t degree : {0, 1, 2}) {
        const Plan plan = make_plan(mask, causal_plan(work, degree).config);
        for (std::size_t s = 1; s < plan.ranks[0].k.segments.size(); ++s) {
          std::int64_t most = 0;
          for (std::int32_t rank = 0; rank < kRanks; ++rank) {
            most = std::max(most, partial_rows(plan, rank, static_cast<std::int32_t>(s)));
          }
          for (std::int32_t rank = 0; rank < kRanks; ++rank) {
            const RankSteps steps(plan, rank);
            EXPECT_EQ(steps.k_segments[s].returning().most_partials, most) << "segment " << s;
          }
        }
      }
    }
  }
}

TEST(RankSteps, OwnKeysWhoseSumsAreInPlaceTakeNoWire) {
  const Plan plan = causal_plan(WorkMode::Keys, 0);
  const RankSteps steps(plan, 0);
  ASSERT_TRUE(steps.is_own_keys_copied());
  const auto places = comm::peer_places(steps.everyones_rows(Space::Keys, 1, false)(), 0);
  EXPECT_EQ(steps.k_segments[1].returning().most_partials, places.most_owned - 64);
}

TEST(RankSteps, AttendsOfAShareHaveItsOwnKeysAlone) {
  Plan plan = make_plan({16, 16, {}}, {});
  plan.ranks[0].slices = {band_slice({0, 8}, {0, 8}, MaskType::Causal),
                          band_slice({8, 16}, {8, 16}, MaskType::Causal)};
  plan.ranks[0].attends[0].slices = {0, 2};
  HeadShares shares;
  shares.count = 2;
  shares.rows_q = shares.rows_k = shares.rows_per_share_q = shares.rows_per_share_k = 8;
  const RankSteps steps(plan, 0, shares);
  ASSERT_EQ(steps.attends.size(), 2U);
  for (const AttendCall& call : steps.attends) {
    EXPECT_EQ(call.k_rows, (Range{8 * call.share, 8 * call.share + 8}));
    EXPECT_EQ(call.slices, std::vector{band_slice({0, 8}, {0, 8}, MaskType::Causal)});
    EXPECT_FALSE(call.is_idle);
  }
  plan.ranks[0].attends[0].slices = {0, 1};
  const RankSteps half(plan, 0, shares);
  ASSERT_EQ(half.attends.size(), 2U);
  EXPECT_TRUE(half.attends[1].slices.empty());
  for (const AttendCall& call : half.attends) {
    EXPECT_FALSE(call.is_idle) << "the first one has keys, so it does not write all rows";
  }
}

}  // namespace
}  // namespace magi
