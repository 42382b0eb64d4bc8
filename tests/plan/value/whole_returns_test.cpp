// SPDX-License-Identifier: Apache-2.0
#include "plan/value/whole_returns.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "plan/cost/flat.hpp"

namespace magi::planner {
namespace {

constexpr Space kBoth[] = {Space::Keys, Space::Queries};

Plan heads_plan(WorkMode work, std::int32_t degree, std::int32_t head_shares = 0,
                std::int32_t devices_per_node = 0) {
  const PlanConfig config{.num_ranks = 4,
                          .num_heads_q = 8,
                          .num_heads_kv = 4,
                          .overlap_degree = degree,
                          .work = work,
                          .head_shares = head_shares,
                          .devices_per_node = devices_per_node};
  return make_plan({256, 256, {band_slice({0, 256}, {0, 256}, MaskType::Full)}}, config);
}

WholeReturns of_plan(const Plan& plan) { return {plan, plan.num_head_shares}; }

TEST(WholeReturns, AreThoseOfSharesInOneGroup) {
  for (const Space space : kBoth) {
    for (const std::int32_t degree : {0, 1, 4}) {
      EXPECT_TRUE(of_plan(heads_plan(WorkMode::Heads, degree, 4)).of(space)) << "degree " << degree;
      EXPECT_FALSE(of_plan(heads_plan(WorkMode::Keys, degree)).of(space)) << "degree " << degree;
      EXPECT_FALSE(of_plan(heads_plan(WorkMode::Queries, degree)).of(space)) << "degree " << degree;
    }
  }
  const WholeReturns of_groups = of_plan(heads_plan(WorkMode::Heads, 1, 2));
  EXPECT_FALSE(of_groups.of(Space::Keys)) << "both groups read all keys";
  const WholeReturns by_node = of_plan(heads_plan(WorkMode::Heads, 1, 4, 2));
  const WholeReturns none;
  for (const Space space : kBoth) EXPECT_FALSE(none.of(space));
  EXPECT_TRUE(by_node.of(Space::Keys)) << "each row crosses for one rank, which is no way by node";
}

TEST(WholeReturns, AreSeenInFlatRowsToo) {
  const Plan plan = heads_plan(WorkMode::Heads, 1, 4);
  const Plan flat = flat_plan(plan);
  EXPECT_TRUE(WholeReturns(flat, 4).of(Space::Queries));
  EXPECT_FALSE(WholeReturns(flat, 1).of(Space::Queries));
}

TEST(WholeReturns, NameWhatGoesBackAlone) {
  const WholeReturns whole = of_plan(heads_plan(WorkMode::Heads, 1, 4));
  EXPECT_FALSE(whole.of(Role::KeysValues));
  EXPECT_FALSE(whole.of(Role::Queries));
  EXPECT_TRUE(whole.of(Role::Results));
  EXPECT_TRUE(whole.of(Role::KeyGradients));
  EXPECT_TRUE(whole.of(Role::QueryGradients));
}

TEST(WholeReturns, AreNoneOfRowsThatGoTwiceOrAreMadeTwice) {
  for (const Space space : kBoth) {
    Plan twice = heads_plan(WorkMode::Heads, 1, 4);
    const auto of_space = [space](const Transfer& t) { return t.space == space; };
    const Transfer again = *std::ranges::find_if(twice.transfers, of_space);
    twice.transfers.push_back(again);
    EXPECT_FALSE(of_plan(twice).of(space)) << "a row that two ranks have";
    Plan merging = heads_plan(WorkMode::Heads, 1, 4);
    WholeReturns whole = of_plan(merging);
    merging.ranks[2].attends.push_back(merging.ranks[2].attends.back());
    whole.find(merging);
    EXPECT_FALSE(whole.of(space)) << "two attention calls of one row";
    merging.ranks[2].attends.pop_back();
    whole.find(merging);
    EXPECT_TRUE(whole.of(space));
  }
}

}  // namespace
}  // namespace magi::planner
