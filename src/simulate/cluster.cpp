// SPDX-License-Identifier: Apache-2.0
#include "simulate/cluster.hpp"

#include <algorithm>
#include <vector>

#include "base/bounds.hpp"
#include "plan/text/machine_name.hpp"

namespace magi::simulate {
namespace {

using json::Value;
using Fields = std::vector<json::Field>;

constexpr std::int32_t kMostDevices = 1024;
constexpr std::int64_t kMergeBytes = 8;  ///< a float32 sum is read and written

Value schema(Cluster& cluster) {
  using json::number;
  return json::object([&cluster]() -> Fields {
    return {{"format", json::constant("magi cluster")},
            {"version", json::version(1, "1")},
            {"machine", planner::machine_name(cluster.machine)},
            {"devices_per_node", json::integer(cluster.devices_per_node, 1, kMostDevices)},
            {"node_bytes_per_second", number(cluster.node.bytes_per_second)},
            {"node_seconds_per_message", number(cluster.node.seconds_per_message)},
            {"network_bytes_per_second", number(cluster.network.bytes_per_second)},
            {"network_seconds_per_message", number(cluster.network.seconds_per_message)},
            {"memory_bytes_per_second", number(cluster.memory_bytes_per_second)},
            {"forward_flops_per_second", number(cluster.forward.flops_per_second)},
            {"forward_pairs_per_row", number(cluster.forward.pairs_per_row)},
            {"forward_pairs_per_edge", number(cluster.forward.pairs_per_edge)},
            {"forward_seconds_per_launch", number(cluster.forward.seconds_per_launch)},
            {"backward_flops_per_second", number(cluster.backward.flops_per_second)},
            {"backward_pairs_per_row", number(cluster.backward.pairs_per_row)},
            {"backward_pairs_per_edge", number(cluster.backward.pairs_per_edge)},
            {"backward_seconds_per_launch", number(cluster.backward.seconds_per_launch)}};
  });
}

/// Seconds of any work stay finite.
void require_rate(const char* name, double value) {
  if (!(value >= 1.0 && value <= 1e24)) throw invalid(name, value, "1 to 1e24");
}

void require_between(const char* name, double value, double high, const char* allowed) {
  if (!(value >= 0.0 && value <= high)) throw invalid(name, value, allowed);
}

void validate(const Cluster& cluster) {
  planner::require_machine_name(cluster.machine);
  magi::require_between("devices_per_node", cluster.devices_per_node, 1, kMostDevices);
  require_rate("node_bytes_per_second", cluster.node.bytes_per_second);
  require_rate("network_bytes_per_second", cluster.network.bytes_per_second);
  require_rate("memory_bytes_per_second", cluster.memory_bytes_per_second);
  require_rate("forward_flops_per_second", cluster.forward.flops_per_second);
  require_rate("backward_flops_per_second", cluster.backward.flops_per_second);
  constexpr const char* kDelays = "0 to 1 second";
  require_between("node_seconds_per_message", cluster.node.seconds_per_message, 1.0, kDelays);
  require_between("network_seconds_per_message", cluster.network.seconds_per_message, 1.0, kDelays);
  require_between("forward_seconds_per_launch", cluster.forward.seconds_per_launch, 1.0, kDelays);
  require_between("backward_seconds_per_launch", cluster.backward.seconds_per_launch, 1.0, kDelays);
  constexpr const char* kPairs = "0 to 1e6 pairs";
  require_between("forward_pairs_per_row", cluster.forward.pairs_per_row, 1e6, kPairs);
  require_between("forward_pairs_per_edge", cluster.forward.pairs_per_edge, 1e6, kPairs);
  require_between("backward_pairs_per_row", cluster.backward.pairs_per_row, 1e6, kPairs);
  require_between("backward_pairs_per_edge", cluster.backward.pairs_per_edge, 1e6, kPairs);
}

}  // namespace

std::string cluster_to_json(const Cluster& cluster) {
  validate(cluster);
  Cluster copy = cluster;
  return json::write(schema(copy)) + "\n";
}

Cluster cluster_from_json(std::string_view text) {
  Cluster cluster;
  json::read(text, "cluster", schema(cluster));
  validate(cluster);
  return cluster;
}

Cluster with_measured(Cluster cluster, const CostFile& file) {
  const CostModel& cost = file.cost;
  magi::validate(cost);
  cluster.machine = file.machine;
  cluster.node = {.bytes_per_second = cost.bytes_per_second,
                  .seconds_per_message = cost.seconds_per_transfer};
  cluster.network = {.bytes_per_second = cost.network_bytes_per_second,
                     .seconds_per_message = cost.network_seconds_per_transfer};
  cluster.memory_bytes_per_second = cost.memory_bytes_per_second;
  cluster.forward.flops_per_second = cost.flops_per_second;
  cluster.backward.flops_per_second = cost.backward_flops_per_second;
  validate(cluster);
  return cluster;
}

double exchange_seconds(const Cluster& cluster, const Traffic& traffic) {
  double moving = 0.0;
  double starting = 0.0;
  for (const LinkClass link : {LinkClass::Node, LinkClass::Network}) {
    const auto index = static_cast<std::size_t>(link);
    const LinkRates& rates = cluster.link(link);
    moving = std::max(moving, static_cast<double>(traffic.bytes[index]) / rates.bytes_per_second);
    starting += traffic.messages[index] * rates.seconds_per_message;
  }
  return moving + starting;
}

double attend_seconds(const Cluster& cluster, const PlanConfig& config, const Work& work, Pass pass,
                      double num_heads_q) {
  if (work.area == 0) return 0.0;
  const KernelRates& kernel = cluster.kernel(pass);
  // The backward has five products: S and dQ, dK over head_dim_qk; dP and dV over head_dim_v.
  const double dims = pass == Pass::Backward ? 3.0 * config.head_dim_qk + 2.0 * config.head_dim_v
                                             : 1.0 * config.head_dim_qk + config.head_dim_v;
  const double pairs = static_cast<double>(work.area) +
                       kernel.pairs_per_row * static_cast<double>(work.rows) +
                       kernel.pairs_per_edge * static_cast<double>(work.edges);
  return kernel.seconds_per_launch + pairs * 2.0 * dims * num_heads_q / kernel.flops_per_second;
}

double merge_seconds(const Cluster& cluster, const PlanConfig& config, std::int64_t rows,
                     double num_heads_q) {
  const double bytes = static_cast<double>(rows) * num_heads_q * config.head_dim_v *
                       static_cast<double>(kMergeBytes);
  return bytes / cluster.memory_bytes_per_second;
}

}  // namespace magi::simulate
