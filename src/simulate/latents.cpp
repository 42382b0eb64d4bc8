// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "simulate/strategies.hpp"

namespace magi::simulate {
namespace {

/// The rows that a rank gets and gives, by link class, straight from and to others.
struct Links {
  std::array<std::int64_t, kNumLinkClasses> in{};
  std::array<std::int64_t, kNumLinkClasses> out{};
  std::array<std::int32_t, kNumLinkClasses> messages{};

  std::int64_t received() const { return in[0] + in[1]; }
  Traffic traffic(std::int64_t row_bytes) const {
    Traffic moved;
    for (const LinkClass link : {LinkClass::Node, LinkClass::Network}) {
      const auto i = static_cast<std::size_t>(link);
      moved.add(link, std::max(in[i], out[i]) * row_bytes, messages[i]);
    }
    return moved;
  }
};

std::vector<Links> links_of(const Plan& keys, const Cluster& cluster) {
  std::vector<Links> links(static_cast<std::size_t>(keys.config.num_ranks));
  std::vector<std::int32_t> last_to(links.size(), -1);  // transfers come by who gets them
  for (const Transfer& transfer : keys.transfers) {
    const auto link = static_cast<std::size_t>(cluster.link_between(transfer.src, transfer.dst));
    Links& to = links[static_cast<std::size_t>(transfer.dst)];
    to.in[link] += transfer.num_rows;
    links[static_cast<std::size_t>(transfer.src)].out[link] += transfer.num_rows;
    std::int32_t& last = last_to[static_cast<std::size_t>(transfer.src)];
    to.messages[link] += last != transfer.dst;
    last = transfer.dst;
  }
  return links;
}

/// A plan of the same mask and placement that moves keys in one exchange.
Plan plan_of_keys(const Problem& problem) {
  PlanConfig config = problem.config;
  config.cost = cost_of(problem.cluster);
  config.devices_per_node = problem.cluster.devices_per_node;
  const Plan plan = make_plan(problem.mask, config);
  const PlanConfig keys{
      .num_ranks = config.num_ranks, .overlap_degree = 1, .max_exchange_bytes = 0};
  return make_plan_on(problem.mask, keys, plan.placement_q, plan.placement_k);
}

}  // namespace

Figures simulate_latents(const Problem& problem) {
  if (!problem.latents) return {.refusal = "the sizes of latents are not given"};
  if (problem.latents->rope > problem.config.head_dim_qk) {
    return {.refusal = "the rotated part of a key has " + std::to_string(problem.latents->rope) +
                       " elements, a key " + std::to_string(problem.config.head_dim_qk)};
  }
  const PlanConfig& config = problem.config;
  const Cluster& cluster = problem.cluster;
  const Plan keys = plan_of_keys(problem);
  const std::vector<Links> links = links_of(keys, cluster);
  const std::int64_t elements = problem.latents->latent + problem.latents->rope;
  const double projected = 2.0 * problem.latents->latent * config.num_heads_kv *
                           (config.head_dim_qk - problem.latents->rope + config.head_dim_v);
  const double row_seconds = projected / cluster.forward.flops_per_second;
  Figures figures;
  for (std::size_t rank = 0; rank < links.size(); ++rank) {
    const Work work = work_of(keys.ranks[rank].slices);
    const std::int64_t own = keys.placement_q.rows_of(static_cast<std::int32_t>(rank));
    const std::int64_t received = links[rank].received();
    for (const Pass pass : {Pass::Forward, Pass::Backward}) {
      const bool is_backward = pass == Pass::Backward;
      // Every strategy projects own rows, forward and backward.
      const std::int64_t more = is_backward ? own + 3 * received : received;
      const std::int64_t bytes = elements * (is_backward ? kSumBytes : config.element_bytes);
      const double attending = attend_seconds(cluster, config, work, pass, config.num_heads_q);
      const double moving = exchange_seconds(cluster, links[rank].traffic(bytes));
      PassFigures& target = figures.passes[static_cast<std::size_t>(pass)];
      const double seconds = attending + moving + static_cast<double>(more) * row_seconds;
      target.seconds = std::max(target.seconds, seconds);
      target.attending_seconds = std::max(target.attending_seconds, attending);
      for (std::size_t i = 0; i < kNumLinkClasses; ++i) {
        target.bytes[i] += links[rank].in[i] * bytes;
      }
    }
    figures.rank_work.push_back(pairs_of_heads(work.area, config.num_heads_q));
    // Keys and values of all heads are never there at a time.
    PlanConfig no_keys = config;
    no_keys.num_heads_kv = 0;
    const std::int64_t rows = (own + received) * elements * (config.element_bytes + kSumBytes);
    figures.memory_bytes =
        std::max(figures.memory_bytes, own * row_memory(no_keys) + rows + 2 * kExpandedBytes);
  }
  return figures;
}

}  // namespace magi::simulate
