// SPDX-License-Identifier: Apache-2.0
#include "plan/cost/step_walk.hpp"

#include <gtest/gtest.h>

namespace magi::planner {
namespace {

constexpr Step exchange_step(std::int32_t index, std::int32_t after = -1) {
  return {.kind = StepKind::Exchange, .index = index, .after = {after, -1}};
}
constexpr Step attend_step(std::int32_t index, std::int32_t after = -1) {
  return {.kind = StepKind::Attend, .index = index, .after = {after, -1}};
}

TEST(StepWalk, LinesRunBesideEachOtherAndWaitForWhatStepsName) {
  const std::vector<Step> steps{exchange_step(0), attend_step(0), exchange_step(1),
                                attend_step(1, 0)};
  WalkedPass<double> pass;
  const auto nothing_hidden = [](std::size_t, double) { return 0.0; };
  walk(
      steps, [](const Step& step) { return step.kind == StepKind::Attend ? 1.5 : 2.0; },
      nothing_hidden, pass);
  ASSERT_EQ(pass.steps.size(), 4u);
  EXPECT_EQ(pass.steps[1].begin, 0.0);
  EXPECT_EQ(pass.steps[2].begin, 2.0);
  EXPECT_EQ(pass.steps[3].begin, 2.0);  // behind exchange 0, not behind attend 0 alone
  EXPECT_EQ(pass.steps[3].end, 3.5);
  EXPECT_EQ(pass.attending, 3.0);
  EXPECT_EQ(pass.end(), 4.0);
  walk(
      steps, [](const Step&) { return 1.0; }, nothing_hidden, pass);
  EXPECT_EQ(pass.steps.size(), 4u) << "what was walked before is gone";
  EXPECT_EQ(pass.end(), 2.0);
}

TEST(StepWalk, HiddenTimePassesBeforeWhatIsAwaitedEnds) {
  const std::vector<Step> forward{exchange_step(0), attend_step(0, 0)};
  WalkedPass<std::int64_t> pass;
  const auto end_of = [&](std::int64_t moving, std::int64_t attending, std::int64_t coming) {
    walk(
        forward,
        [&](const Step& step) { return step.kind == StepKind::Attend ? attending : moving; },
        [&](std::size_t i, std::int64_t took) {
          return hidden_by_arrival(std::span<const Step>(forward), i, pass, false, took, coming);
        },
        pass);
    return pass.end();
  };
  EXPECT_EQ(end_of(10, 100, 40), 100);   // keys come while own ones are attended to
  EXPECT_EQ(end_of(200, 100, 40), 220);  // half of what reads them is left
  const std::vector<Step> backward{exchange_step(0), attend_step(0, 0), exchange_step(1, 1)};
  const auto returned = [&](std::int64_t moving) {
    walk(
        backward, [&](const Step& step) { return step.kind == StepKind::Attend ? 100 : moving; },
        [&](std::size_t i, std::int64_t took) {
          return hidden_by_arrival(std::span<const Step>(backward), i, pass, true, took,
                                   std::int64_t{40});
        },
        pass);
    return pass.end();
  };
  EXPECT_EQ(returned(30), 30 + 100);       // gradients are home with the attention call
  EXPECT_EQ(returned(80), 80 + 100 + 30);  // they began to leave at its middle
}

TEST(StepWalk, InFlightSlicesAreThoseBehindOwnKeys) {
  RankPlan rank{.slices = {{0, 8, 0, 8}, {0, 8, 4, 12, -2, 3}, {2, 6, 10, 12}},
                .attends = {{.k_segment = 1, .slices = {0, 3}}}};
  rank.k.segments = {{.num_rows = 8}};
  const std::vector<BandSlice> coming = in_flight_slices(rank);
  ASSERT_EQ(coming.size(), 2u);
  EXPECT_EQ(coming[0].k0, 8);
  EXPECT_EQ(coming[0].k1, 12);
  EXPECT_EQ(coming[1], rank.slices[2]);
  rank.attends.clear();
  EXPECT_TRUE(in_flight_slices(rank).empty());
}

}  // namespace
}  // namespace magi::planner
