// SPDX-License-Identifier: Apache-2.0
#include "simulate/cluster.hpp"

#include <gtest/gtest.h>

#include "magi/error.hpp"
#include "support/refusal.hpp"

namespace magi::simulate {
namespace {

std::string replaced(std::string text, const std::string& part, const std::string& by) {
  const std::size_t at = text.find(part);
  EXPECT_NE(at, std::string::npos) << part;
  return text.replace(at, part.size(), by);
}

TEST(Cluster, ComesBackFromItsText) {
  Cluster cluster{.machine = "two desks", .devices_per_node = 3};
  cluster.network.bytes_per_second = 1.25e9;
  cluster.backward.pairs_per_edge = 7.5;
  EXPECT_EQ(cluster_from_json(cluster_to_json(cluster)), cluster);
}

TEST(Cluster, RefusesWhatIsNone) {
  const std::string good = cluster_to_json({});
  EXPECT_EQ(cluster_from_json(good), Cluster{});
  const std::pair<std::string, std::string> bad[] = {
      {replaced(good, "magi cluster", "magi cost"), "format"},
      {replaced(good, "\"version\": 1", "\"version\": 2"), "version"},
      {replaced(good, "devices_per_node\": 8", "devices_per_node\": 0"), "devices_per_node"},
      {replaced(good, "node_bytes_per_second", "node_bytes"), "node_bytes"},
      {replaced(good, "400 Gbit/s", "\\\\"), "machine"},
      {good.substr(0, good.size() / 2), "cluster"},
      {"", "cluster"}};
  for (const auto& [text, part] : bad) {
    const std::string refusal = testing::refusal_of([&] { cluster_from_json(text); });
    EXPECT_NE(refusal.find(part), std::string::npos) << refusal;
    EXPECT_NE(refusal, "accepted") << text;
  }
  Cluster slow;
  for (const double rate : {0.0, 1e-300, 1e300}) {  // of which seconds become inf or 0
    slow.network.bytes_per_second = rate;
    EXPECT_THROW(cluster_to_json(slow), InvalidArgument);
  }
  Cluster late;
  late.node.seconds_per_message = 2.0;
  EXPECT_THROW(cluster_to_json(late), InvalidArgument);
  Cluster padded;
  padded.forward.pairs_per_row = -1.0;
  EXPECT_THROW(cluster_to_json(padded), InvalidArgument);
}

TEST(Cluster, TakesTheConstantsOfAMachine) {
  const CostFile file{.machine = "four desks",
                      .cost = {.flops_per_second = 1e12,
                               .backward_flops_per_second = 2e12,
                               .bytes_per_second = 3e9,
                               .memory_bytes_per_second = 4e9,
                               .seconds_per_transfer = 5e-6,
                               .network_bytes_per_second = 6e9,
                               .network_seconds_per_transfer = 7e-6}};
  const Cluster base{.devices_per_node = 3};
  Cluster wanted = base;
  wanted.machine = "four desks";
  wanted.forward.flops_per_second = 1e12;
  wanted.backward.flops_per_second = 2e12;
  wanted.node = {.bytes_per_second = 3e9, .seconds_per_message = 5e-6};
  wanted.memory_bytes_per_second = 4e9;
  wanted.network = {.bytes_per_second = 6e9, .seconds_per_message = 7e-6};
  EXPECT_EQ(with_measured(base, file), wanted);
  EXPECT_THROW(with_measured(base, {.machine = "no desk", .cost = {.flops_per_second = 0.0}}),
               InvalidArgument);
}

TEST(Cluster, RanksFillNodesInOrder) {
  const Cluster cluster{.devices_per_node = 4};
  EXPECT_EQ(cluster.link_between(0, 3), LinkClass::Node);
  EXPECT_EQ(cluster.link_between(3, 4), LinkClass::Network);
  EXPECT_EQ(cluster.node_of(11), 2);
}

TEST(Cluster, LinksCarryBytesSideBySide) {
  const Cluster cluster{.node = {.bytes_per_second = 100.0, .seconds_per_message = 0.5},
                        .network = {.bytes_per_second = 10.0, .seconds_per_message = 1.0}};
  Traffic traffic;
  EXPECT_EQ(exchange_seconds(cluster, traffic), 0.0);
  traffic.add(LinkClass::Node, 300, 2);
  EXPECT_DOUBLE_EQ(exchange_seconds(cluster, traffic), 4.0);
  traffic.add(LinkClass::Network, 20, 1);
  EXPECT_DOUBLE_EQ(exchange_seconds(cluster, traffic), 5.0);
  traffic.add(LinkClass::Network, 20, 0);
  EXPECT_DOUBLE_EQ(exchange_seconds(cluster, traffic), 6.0);
}

TEST(Cluster, KernelsPayForPairsRowsAndEdges) {
  Cluster cluster;
  cluster.forward = {.flops_per_second = 4.0,
                     .pairs_per_row = 2.0,
                     .pairs_per_edge = 3.0,
                     .seconds_per_launch = 1.0};
  cluster.backward = {.flops_per_second = 10.0};
  const PlanConfig config{.num_heads_q = 5, .head_dim_qk = 1, .head_dim_v = 1};
  const Work work{.area = 100, .rows = 10, .edges = 5};
  EXPECT_EQ(attend_seconds(cluster, config, {}, Pass::Forward, 5.0), 0.0);
  EXPECT_DOUBLE_EQ(attend_seconds(cluster, config, work, Pass::Forward, 5.0),
                   1.0 + (100 + 20 + 15) * 4.0 * 5.0 / 4.0);
  EXPECT_DOUBLE_EQ(attend_seconds(cluster, config, work, Pass::Backward, 5.0),
                   100 * 10.0 * 5.0 / 10.0);
}

}  // namespace
}  // namespace magi::simulate
