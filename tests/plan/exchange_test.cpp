// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "magi/error.hpp"
#include "magi/plan.hpp"
#include "plan/plan_support.hpp"

namespace magi {
namespace {

using Records = std::vector<std::pair<std::int32_t, std::int32_t>>;

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
          std::vector<std::int32_t> sent;
          std::vector<std::int32_t> received;
          for (const PeerRows& rows : all[static_cast<std::size_t>(src)][s].owned) {
            if (rows.peer == dst) sent.push_back(rows.num_rows);
          }
          for (const PeerRows& rows : all[static_cast<std::size_t>(dst)][s].needed) {
            if (rows.peer == src) received.push_back(rows.num_rows);
          }
          EXPECT_EQ(sent, received) << src << " to " << dst;
          num_records += sent.size();
        }
      }
    }
    EXPECT_EQ(num_records, plan.transfers.size());
  }
}

/// Carries out the lists as the original's group_cast does: each input split goes to its
/// destinations in order; each output split takes the next split that its source sent here.
TEST(GroupCollectiveArgs, CastMovesExactlyTheReceivedRows) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomStream random(seed);
    const Plan plan = random_plan(random);
    const auto num_ranks = static_cast<std::int32_t>(plan.ranks.size());
    for (std::int32_t wave = 0; wave < plan.num_waves; ++wave) {
      const bool is_combined = plan.num_waves == 1 && plan.ranks[0].k.segments.size() > 1;
      if (wave == 0 && !is_combined) continue;
      std::vector<GroupCollectiveArgs> args;
      for (std::int32_t rank = 0; rank < num_ranks; ++rank) {
        args.push_back(group_collective_args(plan, rank, wave));
      }
      for (std::int32_t dst = 0; dst < num_ranks; ++dst) {
        // Rows from each source to dst, as global rows in the order of the input splits.
        std::vector<std::vector<std::int32_t>> arriving(args.size());
        for (std::int32_t src = 0; src < num_ranks; ++src) {
          const auto own = global_rows(plan.placement_k, src);
          const auto& from = args[static_cast<std::size_t>(src)];
          std::size_t row = 0;
          for (std::size_t i = 0; i < from.input_split_sizes.size(); ++i) {
            const auto size = static_cast<std::size_t>(from.input_split_sizes[i]);
            const auto& ranks = from.dst_indices[i];
            EXPECT_TRUE(std::is_sorted(ranks.begin(), ranks.end()));
            if (std::count(ranks.begin(), ranks.end(), dst) > 0) {
              auto& list = arriving[static_cast<std::size_t>(src)];
              list.insert(list.end(), own.begin() + static_cast<std::ptrdiff_t>(row),
                          own.begin() + static_cast<std::ptrdiff_t>(row + size));
            }
            row += size;
          }
          EXPECT_EQ(row, own.size());
        }
        const auto& to = args[static_cast<std::size_t>(dst)];
        std::vector<std::size_t> next(args.size(), 0);
        std::vector<std::int32_t> received;
        for (std::size_t i = 0; i < to.output_split_sizes.size(); ++i) {
          const auto src = static_cast<std::size_t>(to.src_index[i]);
          for (std::int64_t n = 0; n < to.output_split_sizes[i]; ++n) {
            received.push_back(arriving[src].at(next[src]++));
          }
        }
        const RankPlan& rank = plan.ranks[static_cast<std::size_t>(dst)];
        const std::size_t segment =
            is_combined
                ? 1
                : static_cast<std::size_t>(rank.waves[static_cast<std::size_t>(wave)].k_segment);
        auto expected = segment_rows(plan, dst).at(segment);
        if (is_combined && !expected.empty()) {
          expected.erase(expected.begin(), expected.begin() + rank.k.segments[0].num_rows);
        }
        EXPECT_EQ(received, expected) << "rank " << dst << " wave " << wave;
        for (std::size_t src = 0; src < next.size(); ++src) {
          EXPECT_EQ(next[src], arriving[src].size());
        }
      }
    }
  }
}

TEST(GroupCollectiveArgs, RowsNobodyNeedsHaveNoDestination) {
  // Queries of rank 1 see keys 4 to 8 of rank 0's 16.
  const Mask mask{32, 32, {band_slice({16, 32}, {4, 8}, MaskType::Full)}};
  PlanConfig config;
  config.num_ranks = 2;
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
  EXPECT_THROW(row_exchanges(plan, -1), InvalidArgument);
}

TEST(GroupCollectiveArgs, OneRowGoesToSeveralRanks) {
  const Mask mask{48, 48, {band_slice({0, 48}, {0, 4}, MaskType::Full)}};
  PlanConfig config;
  config.num_ranks = 3;
  const Placement placement = placement_from_chunks(48, 16, 3, {0, 1, 2});
  const Plan plan = make_plan_on(mask, config, placement, placement);
  const GroupCollectiveArgs args = group_collective_args(plan, 0, 1);
  EXPECT_EQ(args.input_split_sizes, (std::vector<std::int64_t>{4, 12}));
  EXPECT_EQ(args.dst_indices, (std::vector<std::vector<std::int64_t>>{{1, 2}, {}}));
}

}  // namespace
}  // namespace magi
