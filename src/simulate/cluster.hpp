// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "magi/plan.hpp"
#include "simulate/work.hpp"

namespace magi::simulate {

/// The links that connect two ranks: the links inside a node, or the network between nodes.
enum class LinkClass : std::int32_t { Node, Network };
inline constexpr std::size_t kNumLinkClasses = 2;

enum class Pass : std::int32_t { Forward, Backward };
inline constexpr std::size_t kNumPasses = 2;

/// The rates of one link class, as seen by one rank. Both classes carry rows at the same time.
struct LinkRates {
  double bytes_per_second = 0.0;     ///< out of one rank, and into it beside that
  double seconds_per_message = 0.0;  ///< for each peer of an exchange
  friend bool operator==(const LinkRates&, const LinkRates&) = default;
};

/// Time of an attention kernel: seconds_per_launch + flops / flops_per_second, where flops are
/// those of the visible pairs and of the masked pairs that tiles hold.
struct KernelRates {
  double flops_per_second = 0.0;
  double pairs_per_row = 0.0;   ///< masked pairs for each query row of a slice
  double pairs_per_edge = 0.0;  ///< and for each bound of a slice's diagonals that the row has
  double seconds_per_launch = 0.0;
  friend bool operator==(const KernelRates&, const KernelRates&) = default;
};

/// A cluster of equal nodes. Ranks fill one node after the other. Defaults: hosts of 8 H200, of
/// which each has a network card of 400 Gbit/s (docs/simulate.md says where they come from).
struct Cluster {
  std::string machine = "hosts of 8 NVIDIA H200, 400 Gbit/s for each";
  std::int32_t devices_per_node = 8;
  LinkRates node{.bytes_per_second = 275e9, .seconds_per_message = 2e-6};
  LinkRates network{.bytes_per_second = 45e9, .seconds_per_message = 5e-6};
  double memory_bytes_per_second = 3.6e12;  ///< where results are merged
  KernelRates forward{.flops_per_second = 663e12,
                      .pairs_per_row = 160.0,
                      .pairs_per_edge = 50.0,
                      .seconds_per_launch = 40e-6};
  KernelRates backward{.flops_per_second = 575e12,
                       .pairs_per_row = 250.0,
                       .pairs_per_edge = 70.0,
                       .seconds_per_launch = 120e-6};
  friend bool operator==(const Cluster&, const Cluster&) = default;

  std::int32_t node_of(std::int32_t rank) const { return rank / devices_per_node; }
  LinkClass link_between(std::int32_t a, std::int32_t b) const {
    return node_of(a) == node_of(b) ? LinkClass::Node : LinkClass::Network;
  }
  const LinkRates& link(LinkClass link) const { return link == LinkClass::Node ? node : network; }
  const KernelRates& kernel(Pass pass) const { return pass == Pass::Forward ? forward : backward; }
};

/// JSON text: "format" ("magi cluster"), "version" (1) and the members by their names, those of
/// rates behind "node_", "network_", "forward_" and "backward_". Reading refuses unknown, repeated
/// and missing keys and values out of range; both throw InvalidArgument.
std::string cluster_to_json(const Cluster& cluster);
Cluster cluster_from_json(std::string_view text);

/// The cluster with the constants that are measured on a machine: links, memory, flop rates, and
/// the machine's name. What else kernels take is that of `cluster`.
Cluster with_measured(Cluster cluster, const CostFile& file);

/// The bytes that one rank sends, or receives, in one exchange, by link class.
struct Traffic {
  std::array<std::int64_t, kNumLinkClasses> bytes{};
  std::array<std::int32_t, kNumLinkClasses> messages{};

  void add(LinkClass link, std::int64_t num_bytes, std::int32_t num_messages) {
    bytes[static_cast<std::size_t>(link)] += num_bytes;
    messages[static_cast<std::size_t>(link)] += num_messages;
  }
};
/// The slower class takes its bytes; messages are started one after the other.
double exchange_seconds(const Cluster& cluster, const Traffic& traffic);

/// Time of an attention call over `work` for num_heads_q query heads; 0 for no work.
double attend_seconds(const Cluster& cluster, const PlanConfig& config, const Work& work, Pass pass,
                      double num_heads_q);
/// The time that merging adds to a forward call: sums of out are float32, read and written, by row.
double merge_seconds(const Cluster& cluster, const PlanConfig& config, std::int64_t rows,
                     double num_heads_q);

}  // namespace magi::simulate
