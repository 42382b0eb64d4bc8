// SPDX-License-Identifier: Apache-2.0
#include "plan/value/hops.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "magi/error.hpp"
#include "magi/mask_builders.hpp"
#include "magi/plan.hpp"
#include "plan/cost/loads.hpp"
#include "plan/plan_support.hpp"
#include "support/random_streams.hpp"

namespace magi {
namespace {

using Place = std::tuple<Space, std::int32_t, std::int32_t>;  ///< space, segment, rank

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

/// Which rows a plan wants where: (owner, its row) by place and row.
using Rows = std::map<std::pair<Place, std::int32_t>, std::pair<std::int32_t, std::int32_t>>;

Rows wanted_rows(const Plan& plan) {
  Rows rows;
  for (const Transfer& t : plan.transfers) {
    for (std::int32_t i = 0; i < t.num_rows; ++i) {
      rows[{{t.space, t.dst_segment, t.dst}, t.dst_row + i}] = {t.src, t.src_row + i};
    }
  }
  return rows;
}

/// A random plan over nodes whose segments all go by node.
Plan random_node_plan(RandomStream& random) {
  Plan plan = random_plan(random);
  while (plan.config.num_ranks < 3) plan = random_plan(random);
  plan.config.devices_per_node = random.between(1, plan.config.num_ranks - 1);
  for (Exchange& exchange : plan.exchanges) exchange.hop = 1;
  return plan;
}

TEST(Hops, BringEachRowToItsReadersAndOnceAcrossToEachNode) {
  for (RandomStream& random : testing::RandomStreams(200)) {
    const Plan plan = random_node_plan(random);
    const std::int32_t node = plan.config.devices_per_node;
    Rows brought;
    std::set<std::tuple<Space, int, std::int32_t, std::int32_t, std::int32_t>> crossed;
    for (const Hop& hop : find_hops(plan)) {
      const bool is_crossing = hop.from / node != hop.to / node;
      ASSERT_FALSE(hop.is_onward && is_crossing);
      for (std::int32_t i = 0; i < hop.num_rows; ++i) {
        std::pair<std::int32_t, std::int32_t> row{hop.from, hop.from_row + i};
        if (hop.is_onward) {
          const Place place{hop.space, hop.segment, hop.from};
          ASSERT_TRUE(brought.contains({place, row.second})) << "handed on before it came";
          row = brought[{place, row.second}];
        }
        if (is_crossing) {
          EXPECT_TRUE(
              crossed.insert({hop.space, hop.segment, row.first, row.second, hop.to / node}).second)
              << "row " << row.second << " of rank " << row.first << " crosses twice";
        }
        const Place place{hop.space, hop.segment, hop.to};
        EXPECT_TRUE(brought.emplace(std::pair(place, hop.to_row + i), row).second);
      }
    }
    EXPECT_EQ(brought, wanted_rows(plan));
  }
}

TEST(Hops, BothSidesListTheSameRecordsInTheSameOrder) {
  for (RandomStream& random : testing::RandomStreams(100)) {
    const Plan plan = random_node_plan(random);
    const std::int32_t num_ranks = plan.config.num_ranks;
    std::size_t num_records = 0;
    for (const Space space : {Space::Keys, Space::Queries}) {
      std::vector<std::vector<NodeExchange>> all;
      for (std::int32_t rank = 0; rank < num_ranks; ++rank) {
        all.push_back(node_exchanges(plan, rank, space));
      }
      for (std::size_t s = 0; s < all[0].size(); ++s) {
        for (const auto leg : {&NodeExchange::first, &NodeExchange::onward}) {
          for (std::int32_t a = 0; a < num_ranks; ++a) {
            for (std::int32_t b = 0; b < num_ranks; ++b) {
              std::vector<std::int32_t> sent, received;
              for (const PeerRows& rows : (all[at(a)][s].*leg).owned) {
                if (rows.peer == b) sent.push_back(rows.num_rows);
              }
              for (const PeerRows& rows : (all[at(b)][s].*leg).needed) {
                if (rows.peer == a) received.push_back(rows.num_rows);
              }
              EXPECT_EQ(sent, received) << a << " to " << b;
              num_records += sent.size();
            }
          }
        }
      }
    }
    EXPECT_EQ(num_records, find_hops(plan).size());
  }
}

/// One causal document over two nodes of two ranks: later rows need all earlier ones.
Plan causal_plan(std::int32_t devices_per_node) {
  const PlanConfig config{.num_ranks = 4, .devices_per_node = devices_per_node};
  return make_plan(mask_from_cu_seqlens({{0, 256}}, {{0, 256}}, {.is_causal = true}), config);
}

using Moved = std::tuple<Space, int, bool, std::int32_t, std::int32_t>;  ///< segment, onward, pair

/// Rows of all hops for each pair of ranks.
std::map<Moved, std::int64_t> sums_of_hops(const Plan& plan) {
  std::map<Moved, std::int64_t> rows;
  for (const Hop& hop : find_hops(plan)) {
    if (hop.from == hop.to) continue;  // a copy of own rows
    rows[{hop.space, hop.segment, hop.is_onward, hop.from, hop.to}] += hop.num_rows;
  }
  return rows;
}

void expect_sums_of_hops(const Plan& plan) {
  std::map<Moved, std::int64_t> rows;
  for (const planner::MovedRows& moved : planner::moved_by_node(plan)) {
    const Moved key{moved.space, moved.segment, moved.is_onward, moved.from, moved.to};
    EXPECT_TRUE(rows.emplace(key, moved.num_rows).second) << moved.from << " to " << moved.to;
  }
  EXPECT_EQ(rows, sums_of_hops(plan));
}

TEST(Hops, AreSummedForEachPairOfRanks) {
  for (RandomStream& random : testing::RandomStreams(200)) {
    expect_sums_of_hops(random_node_plan(random));
  }
  Plan one_node = causal_plan(2);
  one_node.config.devices_per_node = 4;
  EXPECT_TRUE(planner::moved_by_node(one_node).empty());
}

/// Packed causal documents on 64 ranks of 8 nodes, placed without regard to nodes.
Plan plan_of_documents(WorkMode work) {
  RandomStream random(64);
  std::vector<std::int32_t> bounds{0};
  while (bounds.back() < 16384) {
    bounds.push_back(std::min(16384, bounds.back() + random.between(1, 2000)));
  }
  PlanConfig config{.num_ranks = 64, .num_heads_q = 4, .num_heads_kv = 2, .devices_per_node = 8};
  config.placement.algorithm = PlacementAlgorithm::RandomSelect;
  config.overlap_degree.reset();
  config.work = work;
  return make_plan(mask_from_cu_seqlens(bounds, bounds, {.is_causal = true}), config);
}

TEST(Hops, OfManyRanksAreCountedInReportAndLoadsOneByOne) {
  for (const WorkMode work : {WorkMode::Keys, WorkMode::Queries}) {
    SCOPED_TRACE(work_name(work));
    const Plan plan = plan_of_documents(work);
    expect_sums_of_hops(plan);
    const planner::PlanLoads loads(plan);
    std::map<Place, std::int64_t> rows_in, rows_out;
    std::map<Place, std::set<std::int32_t>> peers_in;
    for (const Hop& hop : find_hops(plan)) {
      if (hop.from == hop.to) continue;
      rows_in[{hop.space, hop.segment, hop.to}] += hop.num_rows;
      rows_out[{hop.space, hop.segment, hop.from}] += hop.num_rows;
      if (hop.is_onward) peers_in[{hop.space, hop.segment, hop.to}].insert(hop.from);
    }
    EXPECT_GT(rows_in.size(), 32u);
    for (const auto& [place, rows] : rows_in) {
      const auto& [space, segment, rank] = place;
      const planner::SegmentTraffic& traffic = loads.traffic(rank, space, segment);
      EXPECT_EQ(traffic.rows_in(), rows);
      EXPECT_EQ(traffic.rows_out(), rows_out[place]);
      EXPECT_EQ(at(traffic.onward.peers_in), peers_in[place].size());
    }
    EXPECT_EQ(check_plan(plan), std::vector<std::string>{});
  }
}

std::int64_t bytes_between_nodes(const Plan& plan, std::int32_t devices_per_node) {
  std::int64_t bytes = 0;
  for (std::int32_t a = 0; a < plan.config.num_ranks; ++a) {
    for (std::int32_t b = 0; b < plan.config.num_ranks; ++b) {
      if (a / devices_per_node == b / devices_per_node) continue;
      bytes += plan.report.pair_bytes[at(a * plan.config.num_ranks + b)];
    }
  }
  return bytes;
}

TEST(Hops, ArePlannedWhereTheySaveCrossingsAndCountInTheReport) {
  const Plan flat = causal_plan(0);
  const Plan by_node = causal_plan(2);
  EXPECT_TRUE(std::ranges::all_of(flat.exchanges, [](const Exchange& e) { return e.hop == 0; }));
  EXPECT_TRUE(std::ranges::all_of(by_node.exchanges, [](const Exchange& e) { return e.hop == 1; }));
  EXPECT_EQ(by_node.report.total_bytes, flat.report.total_bytes);
  EXPECT_LE(3 * bytes_between_nodes(by_node, 2), 2 * bytes_between_nodes(flat, 2));
  EXPECT_EQ(check_plan(by_node), std::vector<std::string>{});
  EXPECT_NE(by_node.digest, flat.digest);
  EXPECT_EQ(plan_from_json(plan_to_json(by_node)), by_node);
  EXPECT_NE(describe(by_node).find("\nnodes      2 nodes of 2 ranks, "), std::string::npos);
  EXPECT_NE(describe(by_node).find(" between them, handed on inside\n"), std::string::npos);
  EXPECT_EQ(describe(flat).find("\nnodes "), std::string::npos);
  // Nodes of one rank, and one node of all: nothing to share.
  for (const std::int32_t node : {1, 4, 7}) {
    const Plan plan = causal_plan(node);
    EXPECT_TRUE(find_hops(plan).empty()) << node;
    EXPECT_EQ(plan.report.pair_bytes, flat.report.pair_bytes);
  }
}

TEST(Hops, OfAWindowGoStraight) {
  PlanConfig config{.num_ranks = 4, .devices_per_node = 2};
  config.placement.chunk_size = 16;
  const Mask mask = mask_from_window({0, 256}, {0, 256}, {15, 0}, 256, 256);
  const Plan plan = make_plan(mask, config);
  EXPECT_GT(plan.exchanges.size(), 0u);
  EXPECT_TRUE(std::ranges::all_of(plan.exchanges, [](const Exchange& e) { return e.hop == 0; }));
}

TEST(Hops, TheCheckerCountsThemByItself) {
  Plan plan = causal_plan(2);
  std::swap(plan.report.pair_bytes[at(0 * 4 + 2)], plan.report.pair_bytes[at(0 * 4 + 3)]);
  EXPECT_FALSE(check_plan(plan).empty());
  plan = causal_plan(2);
  plan.exchanges[0].hop = 0;
  plan.digest = plan_digest(plan);
  EXPECT_NE(check_plan(plan)[0].find("of the same rows of hop"), std::string::npos);
}

TEST(Hops, NodesAreValidatedAndPartOfTheDigest) {
  EXPECT_THROW(causal_plan(-1), InvalidArgument);
  EXPECT_THROW(causal_plan(4097), InvalidArgument);
  Plan plan = causal_plan(2);
  plan.config.cost.network_bytes_per_second *= 2;
  EXPECT_NE(plan_digest(plan), plan.digest);
  plan = causal_plan(0);
  plan.config.cost.network_bytes_per_second *= 2;  // of no consequence within one node
  EXPECT_EQ(plan_digest(plan), plan.digest);
}

}  // namespace
}  // namespace magi
