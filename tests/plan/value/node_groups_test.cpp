// SPDX-License-Identifier: Apache-2.0
#include "plan/value/node_groups.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "plan/plan_support.hpp"
#include "support/random_streams.hpp"

namespace magi::planner {
namespace {

using Group =
    std::tuple<Space, std::int32_t, std::int32_t, std::int32_t>;  ///< node, segment, owner
/// Who reads a row of a group's owner, and where it lies in the reader's segment.
using Readers = std::map<std::pair<Group, std::int32_t>, std::set<std::pair<int, int>>>;

Plan random_node_plan(RandomStream& random) {
  Plan plan = random_plan(random);
  while (plan.config.num_ranks < 2) plan = random_plan(random);
  plan.config.devices_per_node = random.between(1, plan.config.num_ranks - 1);
  return plan;
}

Readers readers_of_transfers(const Plan& plan) {
  Readers readers;
  for (const Transfer& t : plan.transfers) {
    const Group group{t.space, t.dst / plan.config.devices_per_node, t.dst_segment, t.src};
    for (std::int32_t i = 0; i < t.num_rows; ++i) {
      readers[{group, t.src_row + i}].insert({t.dst, t.dst_row + i});
    }
  }
  return readers;
}

TEST(NodeGroups, AndSweepsTellWhoOfANodeReadsEachRow) {
  std::size_t num_shared = 0;
  for (RandomStream& random : testing::RandomStreams(300)) {
    const Plan plan = random_node_plan(random);
    Readers readers;
    Group last{Space::Keys, -1, 0, 0};
    ReaderSweep sweep;
    NodeGroups(plan).visit(
        [](Space, std::int32_t) { return true; },
        [&](const NodeGroup& group) {
          const Group at{group.space, group.node, group.segment, group.owner};
          EXPECT_LT(last, at);
          last = at;
          std::int32_t row = 0;
          bool is_shared = false;
          sweep.run(group, [&](Range rows, std::span<const Reading* const> readings) {
            EXPECT_LE(row, rows.begin);
            EXPECT_LT(rows.begin, rows.end);
            row = rows.end;
            is_shared = is_shared || readings.size() > 1;
            for (const Reading* reading : readings) {
              for (std::int32_t i = rows.begin; i < rows.end; ++i) {
                readers[{at, i}].insert({reading->reader, reading->to_row + i - reading->begin});
              }
            }
          });
          EXPECT_EQ(has_shared_rows(group), is_shared);
          num_shared += is_shared ? 1 : 0;
        });
    EXPECT_EQ(readers, readers_of_transfers(plan));
  }
  EXPECT_GT(num_shared, 100u);
}

TEST(NodeGroups, AreOfWantedSegmentsAlone) {
  PlanConfig config{.num_ranks = 4, .overlap_degree = 4, .devices_per_node = 2};
  config.stage_mode = StageMode::Rows;
  config.min_stage_rows = 8;
  const Mask mask{256, 256, {band_slice({0, 256}, {0, 256}, MaskType::Full)}};
  const Plan plan = make_plan(mask, config);
  std::set<std::int32_t> segments;
  NodeGroups(plan).visit([](Space, std::int32_t segment) { return segment % 2 == 0; },
                         [&](const NodeGroup& group) { segments.insert(group.segment); });
  EXPECT_EQ(segments, (std::set<std::int32_t>{2, 4}));
}

}  // namespace
}  // namespace magi::planner
