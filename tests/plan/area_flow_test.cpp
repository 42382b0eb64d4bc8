// SPDX-License-Identifier: Apache-2.0
#include "plan/area_flow.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "base/random.hpp"

namespace magi::planner {
namespace {

std::vector<AreaFlow::Item> random_items(RandomStream& random, std::int32_t num_ranks,
                                         bool has_costs) {
  std::vector<AreaFlow::Item> items(static_cast<std::size_t>(random.between(1, 12)));
  for (AreaFlow::Item& item : items) {
    item.area = random.between(0, 9);
    item.allowed = static_cast<RankSet>(random.between(1, (1 << num_ranks) - 1));
    for (std::int32_t rank = 0; has_costs && rank < num_ranks; ++rank) {
      item.cost.push_back(random.between(0, 5));
    }
  }
  return items;
}

/// A flow exists exactly where no set of ranks has items of its own that exceed its room.
bool can_level(const std::vector<AreaFlow::Item>& items, std::int32_t num_ranks,
               std::int64_t most) {
  for (RankSet ranks = 1; ranks < only(num_ranks); ++ranks) {
    std::int64_t own = 0;
    for (const AreaFlow::Item& item : items) own += (item.allowed & ~ranks) == 0 ? item.area : 0;
    if (own > most * std::popcount(ranks)) return false;
  }
  return true;
}

/// The least cost of all flows of whole units, found by trying every one.
class LeastCost {
 public:
  LeastCost(const std::vector<AreaFlow::Item>& items, std::int32_t num_ranks, std::int64_t most)
      : items_(items), room_(static_cast<std::size_t>(num_ranks), most) {}

  std::int64_t find() {
    place(0, items_.empty() ? 0 : items_[0].area, 0);
    return best_;
  }

 private:
  void place(std::size_t item, std::int64_t left, std::int64_t cost) {
    if (cost >= best_) return;
    while (item < items_.size() && left == 0) {
      if (++item < items_.size()) left = items_[item].area;
    }
    if (item == items_.size()) {
      best_ = cost;
      return;
    }
    for (std::size_t rank = 0; rank < room_.size(); ++rank) {
      const bool may = (items_[item].allowed & only(static_cast<std::int32_t>(rank))) != 0;
      if (!may || room_[rank] == 0) continue;
      --room_[rank];
      place(item, left - 1, cost + items_[item].cost[rank]);
      ++room_[rank];
    }
  }

  const std::vector<AreaFlow::Item>& items_;
  std::vector<std::int64_t> room_;
  std::int64_t best_ = std::int64_t{1} << 60;
};

void expect_flow(const AreaFlow& flow, const std::vector<AreaFlow::Item>& items,
                 std::int32_t num_ranks) {
  std::vector<std::int64_t> areas(items.size());
  for (std::int32_t rank = 0; rank < num_ranks; ++rank) {
    std::int64_t load = 0;
    for (const AreaFlow::Share& share : flow.shares_of(rank)) {
      EXPECT_GT(share.area, 0);
      EXPECT_NE(items.at(static_cast<std::size_t>(share.item)).allowed & only(rank), 0u);
      areas[static_cast<std::size_t>(share.item)] += share.area;
      load += share.area;
    }
    EXPECT_EQ(load, flow.loads()[static_cast<std::size_t>(rank)]);
  }
  for (std::size_t i = 0; i < items.size(); ++i) EXPECT_EQ(areas[i], items[i].area);
}

TEST(AreaFlow, LevelsExactlyWhereSomeFlowDoes) {
  int num_level = 0;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomStream random(seed);
    const std::int32_t num_ranks = random.between(1, 5);
    const auto items = random_items(random, num_ranks, random.chance(50));
    AreaFlow flow(items, num_ranks);
    const std::int64_t most = random.between(0, 25);
    const bool is_level = flow.level(most);
    EXPECT_EQ(is_level, can_level(items, num_ranks, most));
    expect_flow(flow, items, num_ranks);
    if (is_level) {
      EXPECT_LE(std::ranges::max(flow.loads()), most);
    }
    num_level += is_level ? 1 : 0;
  }
  EXPECT_GT(num_level, 100);
  EXPECT_LT(num_level, 400);
}

TEST(AreaFlow, CostsTheLeastOfAllFlows) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomStream random(seed);
    const std::int32_t num_ranks = random.between(2, 3);
    auto items = random_items(random, num_ranks, true);
    items.resize(std::min<std::size_t>(items.size(), 4));
    for (AreaFlow::Item& item : items) item.area %= 4;
    AreaFlow flow(items, num_ranks);
    const std::int64_t most = random.between(2, 6);
    if (!flow.level(most)) continue;
    std::int64_t cost = 0;
    for (std::int32_t rank = 0; rank < num_ranks; ++rank) {
      for (const AreaFlow::Share& share : flow.shares_of(rank)) {
        cost += share.area *
                items[static_cast<std::size_t>(share.item)].cost[static_cast<std::size_t>(rank)];
      }
    }
    EXPECT_EQ(cost, LeastCost(items, num_ranks, most).find());
  }
}

TEST(AreaFlow, AnItemGoesWhereMostOfItFlows) {
  const std::vector<AreaFlow::Item> items{{10, 0b11, {0, 1}}, {0, 0b10, {0, 0}}, {4, 0b01, {0, 0}}};
  AreaFlow flow(items, 2);
  ASSERT_TRUE(flow.level(8));
  EXPECT_EQ(flow.loads(), (std::vector<std::int64_t>{8, 6}));
  EXPECT_EQ(flow.largest_shares(), (std::vector<std::int32_t>{1, 1, 0}));
}

}  // namespace
}  // namespace magi::planner
