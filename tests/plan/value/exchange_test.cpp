// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "magi/error.hpp"
#include "magi/plan.hpp"
#include "plan/plan_support.hpp"
#include "support/random_streams.hpp"

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
  for (RandomStream& random : testing::RandomStreams(200)) {
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

TEST(RowExchanges, ARankOutsideThePlanIsRefused) {
  EXPECT_THROW(row_exchanges(rectangle_plan(), -1), InvalidArgument);
  EXPECT_THROW(row_exchanges(rectangle_plan(), 2), InvalidArgument);
}

}  // namespace
}  // namespace magi
