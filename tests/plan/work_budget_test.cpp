// SPDX-License-Identifier: Apache-2.0
#include "plan/work_budget.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "plan/work_support.hpp"

namespace magi::planner {
namespace {

/// What ranks send and receive when parts go to all that may read them.
std::vector<std::int64_t> traffic_of(const WorkScale& work, const ReadSets& sets) {
  std::vector<std::int64_t> sent(static_cast<std::size_t>(work.num_ranks));
  std::vector<std::int64_t> received(sent);
  const auto count = [&](const auto& parts, const auto& readers, const auto& costs) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      EXPECT_NE(readers[i] & only(parts[i].owner), 0u);
      for (std::int32_t rank = 0; rank < work.num_ranks; ++rank) {
        if (rank == parts[i].owner || (readers[i] & only(rank)) == 0) continue;
        sent[static_cast<std::size_t>(parts[i].owner)] += costs[i];
        received[static_cast<std::size_t>(rank)] += costs[i];
      }
    }
  };
  count(work.grid.q, sets.q, work.cost_q);
  count(work.grid.k, sets.k, work.cost_k);
  sent.insert(sent.end(), received.begin(), received.end());
  return sent;
}

TEST(WorkBudget, NoRankSendsOrReceivesMoreThanTheBudget) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomStream random(seed);
    const GridCase test = random_grid(random);
    const WorkScale work(test.grid, test.num_ranks, {random.between(1, 9), random.between(1, 9)});
    const std::int64_t budget = random.between(0, 4 * static_cast<std::int32_t>(kShardUnit));
    const ReadSets sets = choose_rows(work, budget, random.between(1, 8));
    EXPECT_LE(std::ranges::max(traffic_of(work, sets)), budget);
  }
}

TEST(WorkBudget, TheLargestLetsEveryRankComputeEveryTile) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomStream random(seed);
    const GridCase test = random_grid(random);
    const WorkScale work(test.grid, test.num_ranks, {random.between(1, 9), random.between(1, 9)});
    const ReadSets sets = choose_rows(work, largest_budget(work), random.between(1, 4));
    for (std::size_t t = 0; t < work.areas.size(); ++t) {
      if (work.areas[t] < work.num_ranks) continue;  // without area to share no row is worth it
      EXPECT_EQ(sets.of(work.grid.tiles[t]), only(test.num_ranks) - 1);
    }
  }
}

TEST(WorkBudget, NothingIsSentWithoutABudget) {
  const GridCase test = ordered_causal(1024, 4, 64);
  const WorkScale work(test.grid, 4, {1, 1});
  const ReadSets sets = choose_rows(work, 0, 4);
  const ReadSets owned = owned_rows(work);
  EXPECT_EQ(sets.q, owned.q);
  EXPECT_EQ(sets.k, owned.k);
}

TEST(WorkBudget, TheLeastIsFoundWhateverIsTriedAtOnce) {
  const GridCase test = ordered_causal(1024, 4, 64);
  const WorkScale work(test.grid, 4, {1, 1});
  for (const std::int32_t num_at_once : {1, 2, 4, 7}) {
    for (const std::int64_t least :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{123456}, largest_budget(work)}) {
      const auto found = least_budget(work, {.width = 1, .num_at_once = num_at_once},
                                      [least](std::int64_t budget) { return budget >= least; });
      EXPECT_EQ(found, least) << num_at_once << " at once";
    }
    EXPECT_EQ(least_budget(work, {.width = 1, .num_at_once = num_at_once},
                           [](std::int64_t) { return false; }),
              std::nullopt);
  }
}

TEST(WorkBudget, AFailedTryIsTheCallersError) {
  const GridCase test = ordered_causal(1024, 4, 64);
  const WorkScale work(test.grid, 4, {1, 1});
  const auto attempt = [&](std::int64_t budget) {
    if (budget < largest_budget(work)) throw std::runtime_error("refused");
    return true;
  };
  EXPECT_THROW(least_budget(work, {.width = 1, .num_at_once = 3}, attempt), std::runtime_error);
}

}  // namespace
}  // namespace magi::planner
