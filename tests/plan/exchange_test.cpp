// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "magi/error.hpp"
#include "magi/plan.hpp"
#include "plan/plan_support.hpp"

namespace magi {
namespace {

std::vector<std::int32_t> sizes_with(const std::vector<PeerRows>& rows, std::int32_t peer) {
  std::vector<std::int32_t> sizes;
  for (const PeerRows& record : rows) {
    if (record.peer == peer) sizes.push_back(record.num_rows);
  }
  return sizes;
}

TEST(RowExchanges, BothSidesListTheSameRecordsInTheSameOrder) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomStream random(seed);
    const Plan plan = random_plan(random);
    const auto num_ranks = static_cast<std::int32_t>(plan.ranks.size());
    std::vector<std::vector<RowExchange>> all;
    for (std::int32_t rank = 0; rank < num_ranks; ++rank) {
      all.push_back(row_exchanges(plan, rank));
      ASSERT_EQ(all.back().size(), plan.ranks[0].k.segments.size());
      EXPECT_EQ(all.back()[0], RowExchange{});
    }
    std::size_t num_records = 0;
    for (std::size_t s = 1; s < all[0].size(); ++s) {
      for (std::int32_t src = 0; src < num_ranks; ++src) {
        for (std::int32_t dst = 0; dst < num_ranks; ++dst) {
          const auto sent = sizes_with(all[static_cast<std::size_t>(src)][s].owned, dst);
          EXPECT_EQ(sent, sizes_with(all[static_cast<std::size_t>(dst)][s].needed, src))
              << src << " to " << dst;
          num_records += sent.size();
        }
      }
    }
    EXPECT_EQ(num_records, plan.transfers.size());
  }
}

TEST(RowExchanges, QueriesHaveListsOfTheirOwn) {
  const Plan plan = rectangle_plan();
  const PeerRows there{.peer = 1, .row = 0, .num_rows = 32};
  const PeerRows here{.peer = 0, .row = 0, .num_rows = 32};
  for (const Space space : {Space::Keys, Space::Queries}) {
    EXPECT_EQ(row_exchanges(plan, 0, space)[1], (RowExchange{.owned = {there}, .needed = {}}));
    EXPECT_EQ(row_exchanges(plan, 1, space)[1], (RowExchange{.owned = {}, .needed = {here}}));
  }
}

TEST(RowExchanges, OwnRowsThatAreCopiedAreOfThisRank) {
  PlanConfig config{.num_ranks = 2, .overlap_degree = 0};
  const Mask mask{64, 64, {band_slice({0, 64}, {0, 64}, MaskType::Causal)}};
  const Placement placement = placement_from_chunks(64, 32, 2, {0, 1});
  const Plan plan = make_plan_on(mask, config, placement, placement);
  const RowExchange rows = row_exchanges(plan, 1)[1];
  EXPECT_EQ(rows.owned, (std::vector<PeerRows>{{.peer = 1, .num_rows = 32}}));
  EXPECT_EQ(rows.needed, (std::vector<PeerRows>{{.peer = 1, .num_rows = 32},
                                                {.peer = 0, .row = 32, .num_rows = 32}}));
}

using Rows = std::vector<std::int32_t>;

/// Global rows that `dst` gets from `src`, in the order of the input splits.
Rows rows_sent(const Plan& plan, const GroupCollectiveArgs& args, std::int32_t src,
               std::int32_t dst) {
  const Rows own = global_rows(plan.placement_k, src);
  Rows sent;
  std::size_t row = 0;
  for (std::size_t i = 0; i < args.input_split_sizes.size(); ++i) {
    const auto& ranks = args.dst_indices[i];
    EXPECT_TRUE(std::is_sorted(ranks.begin(), ranks.end()));
    const bool is_meant = std::count(ranks.begin(), ranks.end(), dst) > 0;
    for (std::int64_t n = 0; n < args.input_split_sizes[i]; ++n, ++row) {
      if (is_meant) sent.push_back(own.at(row));
    }
  }
  EXPECT_EQ(row, own.size());
  return sent;
}

/// Carries out the lists as the original's group_cast does: each input split goes to its
/// destinations in order; each output split takes the next rows that its source sent here.
Rows rows_cast(const Plan& plan, const std::vector<GroupCollectiveArgs>& args, std::int32_t dst) {
  std::vector<Rows> arriving;
  for (std::size_t src = 0; src < args.size(); ++src) {
    arriving.push_back(rows_sent(plan, args[src], static_cast<std::int32_t>(src), dst));
  }
  const GroupCollectiveArgs& to = args[static_cast<std::size_t>(dst)];
  std::vector<std::size_t> next(args.size(), 0);
  Rows received;
  for (std::size_t i = 0; i < to.output_split_sizes.size(); ++i) {
    const auto src = static_cast<std::size_t>(to.src_index[i]);
    for (std::int64_t n = 0; n < to.output_split_sizes[i]; ++n) {
      received.push_back(arriving[src].at(next[src]++));
    }
  }
  for (std::size_t src = 0; src < next.size(); ++src) EXPECT_EQ(next[src], arriving[src].size());
  return received;
}

/// Rows of a segment that come from other ranks.
Rows rows_planned(const Plan& plan, std::int32_t dst, std::int32_t segment) {
  Rows rows = segment_rows(plan, dst).at(static_cast<std::size_t>(segment));
  for (const Transfer& t : plan.transfers) {
    const bool is_copy = t.src == dst && t.dst == dst && t.dst_segment == segment;
    if (is_copy) rows.erase(rows.begin(), rows.begin() + t.num_rows);
  }
  return rows;
}

TEST(GroupCollectiveArgs, CastMovesExactlyTheReceivedRows) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomStream random(seed);
    const Plan plan = random_plan(random);
    const auto num_ranks = static_cast<std::int32_t>(plan.ranks.size());
    for (const Exchange& exchange : plan.exchanges) {
      if (exchange.role != Role::KeysValues) continue;
      std::vector<GroupCollectiveArgs> args;
      for (std::int32_t rank = 0; rank < num_ranks; ++rank) {
        args.push_back(group_collective_args(plan, rank, exchange.stage));
      }
      for (std::int32_t dst = 0; dst < num_ranks; ++dst) {
        EXPECT_EQ(rows_cast(plan, args, dst), rows_planned(plan, dst, exchange.segment))
            << "rank " << dst << " stage " << exchange.stage;
      }
    }
  }
}

TEST(GroupCollectiveArgs, RowsNobodyNeedsHaveNoDestination) {
  // Queries of rank 1 see keys 4 to 8 of rank 0's 16.
  const Mask mask{32, 32, {band_slice({16, 32}, {4, 8}, MaskType::Full)}};
  const PlanConfig config{.num_ranks = 2, .overlap_degree = 1};
  const Placement placement = placement_from_chunks(32, 16, 2, {0, 1});
  const Plan plan = make_plan_on(mask, config, placement, placement);
  const GroupCollectiveArgs sender = group_collective_args(plan, 0, 1);
  EXPECT_EQ(sender.input_split_sizes, (std::vector<std::int64_t>{4, 4, 8}));
  EXPECT_EQ(sender.dst_indices, (std::vector<std::vector<std::int64_t>>{{}, {1}, {}}));
  EXPECT_TRUE(sender.output_split_sizes.empty());
  const GroupCollectiveArgs receiver = group_collective_args(plan, 1, 1);
  EXPECT_EQ(receiver.input_split_sizes, (std::vector<std::int64_t>{16}));
  EXPECT_EQ(receiver.output_split_sizes, (std::vector<std::int64_t>{4}));
  EXPECT_EQ(receiver.src_index, (std::vector<std::int64_t>{0}));
  EXPECT_THROW(group_collective_args(plan, 2, 1), InvalidArgument);
  EXPECT_THROW(group_collective_args(plan, 0, 0), InvalidArgument);
  EXPECT_THROW(group_collective_args(plan, 0, 2), InvalidArgument);
  const Mask diagonal{4, 4, {{0, 4, 0, 4, 0, 0}}};
  EXPECT_THROW(group_collective_args(make_plan(diagonal, {.num_ranks = 2}), 0, 1), InvalidArgument);
  EXPECT_THROW(row_exchanges(plan, -1), InvalidArgument);
}

TEST(GroupCollectiveArgs, SharesOfHeadsAreRefused) {
  const Mask mask{64, 64, {band_slice({0, 64}, {0, 64}, MaskType::Full)}};
  PlanConfig config{.num_ranks = 2, .num_heads_q = 4, .num_heads_kv = 2};
  config.work = WorkMode::Heads;
  config.head_shares = 2;
  const Plan plan = make_plan(mask, config);
  ASSERT_EQ(plan.num_head_shares, 2);
  EXPECT_THROW(group_collective_args(plan, 0, 1), InvalidArgument);
}

TEST(GroupCollectiveArgs, OneRowGoesToSeveralRanks) {
  const Mask mask{48, 48, {band_slice({0, 48}, {0, 4}, MaskType::Full)}};
  const PlanConfig config{.num_ranks = 3, .overlap_degree = 1};
  const Placement placement = placement_from_chunks(48, 16, 3, {0, 1, 2});
  const Plan plan = make_plan_on(mask, config, placement, placement);
  const GroupCollectiveArgs args = group_collective_args(plan, 0, 1);
  EXPECT_EQ(args.input_split_sizes, (std::vector<std::int64_t>{4, 12}));
  EXPECT_EQ(args.dst_indices, (std::vector<std::vector<std::int64_t>>{{1, 2}, {}}));
}

}  // namespace
}  // namespace magi
