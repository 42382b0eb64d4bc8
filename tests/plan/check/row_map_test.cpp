// SPDX-License-Identifier: Apache-2.0
#include "plan/check/row_map.hpp"

#include <gtest/gtest.h>

#include "plan/plan_support.hpp"

namespace magi {
namespace {

TEST(RowMap, HoldsTheGlobalRowsOfEverySegment) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    RandomStream random(seed);
    const Plan plan = seed == 0 ? rectangle_plan() : random_plan(random);
    for (const Space space : {Space::Keys, Space::Queries}) {
      const planner::RowMap map(plan, space);
      for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
        const auto expected = segment_rows(plan, static_cast<std::int32_t>(r), space);
        for (std::size_t s = 0; s < expected.size(); ++s) {
          std::vector<std::int32_t> rows;
          for (const planner::MappedRows& run : map.of(r, static_cast<std::int32_t>(s))) {
            ASSERT_EQ(run.local, std::ssize(rows)) << "seed " << seed;
            for (std::int32_t i = 0; i < run.num_rows; ++i) rows.push_back(run.global + i);
          }
          EXPECT_EQ(rows, expected[s]) << "seed " << seed << " rank " << r << " segment " << s;
        }
      }
    }
  }
}

TEST(RowMap, RunsEndWhereOwnRowsBeginAndGoOnOverOtherOwners) {
  const Mask mask{12, 12, {band_slice({0, 12}, {0, 12}, MaskType::Full)}};
  const Placement placement = placement_from_chunks(12, 4, 3, {0, 1, 2});
  PlanConfig config{.num_ranks = 3};
  config.overlap_degree = 0;
  const Plan plan = make_plan_on(mask, config, placement, placement);
  const planner::RowMap map(plan, Space::Keys);
  const auto runs = map.of(0, 1);
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0], (planner::MappedRows{0, 0, 4, true}));
  EXPECT_EQ(runs[1], (planner::MappedRows{4, 4, 8, false}));
}

}  // namespace
}  // namespace magi
