// SPDX-License-Identifier: Apache-2.0
#include "plan/check/plan_mutants.hpp"

#include <gtest/gtest.h>

#include "plan/plan_oracle.hpp"
#include "support/random_streams.hpp"

namespace magi::testing {
namespace {

TEST(PlanMutants, EveryWrongOneIsRefusedAndNoRightOne) {
  constexpr std::uint64_t kSeed = 20261;
  const MutantCounts counts = judge_mutants(kSeed, 5000);
  std::cout << "seed " << kSeed << ": " << counts.num_wrong << " wrong, " << counts.num_right
            << " right\n";
  EXPECT_EQ(counts.num_refused, counts.num_wrong);
  EXPECT_EQ(counts.num_accepted, counts.num_right);
  EXPECT_EQ(counts.first_disagreement, "");
  EXPECT_GT(counts.num_wrong, 2500);
  EXPECT_GT(counts.num_right, 300);
}

TEST(PlanMutants, PlansThatNobodyChangedAreRight) {
  int num_in_turns = 0;
  for (RandomStream& random : testing::RandomStreams(300)) {
    Plan plan = small_random_plan(random);
    num_in_turns += plan.stages_in_flight > 0 ? 1 : 0;
    EXPECT_EQ(judge_plan(plan), "");
    const Plan before = plan;
    EXPECT_TRUE(renew_figures(plan));
    EXPECT_EQ(plan, before);
  }
  EXPECT_GT(num_in_turns, 20);
}

}  // namespace
}  // namespace magi::testing
