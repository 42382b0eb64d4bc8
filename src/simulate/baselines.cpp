// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "simulate/strategies.hpp"

namespace magi::simulate {
namespace {

std::int32_t num_nodes(const Problem& problem) {
  return problem.cluster.node_of(problem.config.num_ranks - 1) + 1;
}
/// Ranks of the node; the last one may have fewer.
std::int32_t ranks_of_node(const Problem& problem, std::int32_t node) {
  const std::int32_t per_node = problem.cluster.devices_per_node;
  return std::min(per_node, problem.config.num_ranks - node * per_node);
}

/// Rows of all other ranks come to each of a node's `members` ranks. Rows of other nodes cross the
/// network once, each rank of the node takes its share, and fan out inside.
Traffic gather_traffic(const Problem& problem, std::int32_t members, std::int64_t rank_bytes) {
  const std::int32_t others = problem.config.num_ranks - members;
  const std::int64_t crossing = others * rank_bytes;
  Traffic traffic;
  traffic.add(LinkClass::Network, (crossing + members - 1) / members, num_nodes(problem) - 1);
  traffic.add(LinkClass::Node, (members - 1) * rank_bytes + crossing - crossing / members,
              members - 1);
  return traffic;
}

/// Time and bytes of a gather of `rank_bytes` from each rank, or of the reduce that mirrors it.
void add_gather(const Problem& problem, std::int64_t rank_bytes, PassFigures& figures) {
  double slowest = 0.0;
  for (std::int32_t node = 0; node < num_nodes(problem); ++node) {
    const std::int32_t members = ranks_of_node(problem, node);
    const Traffic traffic = gather_traffic(problem, members, rank_bytes);
    slowest = std::max(slowest, exchange_seconds(problem.cluster, traffic));
    const std::int64_t crossing = (problem.config.num_ranks - members) * rank_bytes;
    figures.bytes[static_cast<std::size_t>(LinkClass::Network)] += crossing;
    figures.bytes[static_cast<std::size_t>(LinkClass::Node)] +=
        members * (problem.config.num_ranks - 1) * rank_bytes - crossing;
  }
  figures.seconds += slowest;
}

/// Heads of k and v that each of `degree` ranks has: shared ones are sent to several.
std::int32_t shared_key_heads(const PlanConfig& config, std::int32_t degree) {
  return std::max(config.num_heads_kv / degree, 1);
}

/// The largest number of ranks that share heads inside a node and divide the ranks and both heads.
std::int32_t largest_degree(const Problem& problem) {
  const PlanConfig& config = problem.config;
  const std::int32_t common =
      std::gcd(std::gcd(config.num_heads_q, config.num_heads_kv), config.num_ranks);
  std::int32_t degree = 1;
  for (std::int32_t d = 1; d <= std::min(common, problem.cluster.devices_per_node); ++d) {
    if (common % d == 0) degree = d;
  }
  return degree;
}

std::string refusal_of_heads(const PlanConfig& config, std::int32_t degree) {
  const bool splits_keys = config.num_heads_kv % degree == 0 || degree % config.num_heads_kv == 0;
  if (config.num_heads_q % degree == 0 && splits_keys) return {};
  return std::to_string(config.num_heads_q) + ":" + std::to_string(config.num_heads_kv) +
         " heads cannot be shared by " + std::to_string(degree) + " ranks";
}

}  // namespace

Figures simulate_all_gather(const Problem& problem) {
  const PlanConfig& config = problem.config;
  const RowParts parts{problem.mask.rows_q, config.num_ranks, RowOrder::Zigzag};
  const std::vector<Work> work = query_work(problem.mask, parts);
  const std::int64_t rows = parts.rows_of_member();
  const std::int64_t keys = rows * key_elements(config);
  Figures figures;
  for (const Pass pass : {Pass::Forward, Pass::Backward}) {
    PassFigures& target = figures.passes[static_cast<std::size_t>(pass)];
    for (const Work& own : work) {
      target.attending_seconds =
          std::max(target.attending_seconds,
                   attend_seconds(problem.cluster, config, own, pass, config.num_heads_q));
    }
    target.seconds = target.attending_seconds;
    add_gather(problem, keys * config.element_bytes, target);
    if (pass == Pass::Backward) add_gather(problem, keys * kSumBytes, target);
  }
  for (const Work& own : work)
    figures.rank_work.push_back(pairs_of_heads(own.area, config.num_heads_q));
  figures.memory_bytes =
      rows * row_memory(config) + keys * config.num_ranks * (config.element_bytes + kSumBytes);
  return figures;
}

void add_all_to_alls(const Problem& problem, std::int32_t degree, std::int64_t rows,
                     Figures& figures) {
  const PlanConfig& config = problem.config;
  const std::int64_t query = query_elements(config) / degree;
  const std::int64_t out = out_elements(config) / degree;
  const std::int64_t keys =
      std::int64_t{shared_key_heads(config, degree)} * (config.head_dim_qk + config.head_dim_v);
  // Forward: q, k, v there, out back; backward: the gradient of out there, those of q, k, v back.
  for (PassFigures& pass : figures.passes) {
    for (const std::int64_t elements : {query + keys, out}) {
      double slowest = 0.0;
      for (std::int32_t rank = 0; rank < config.num_ranks; ++rank) {
        Traffic traffic;
        const std::int32_t first = rank / degree * degree;
        for (std::int32_t peer = first; peer < first + degree; ++peer) {
          if (peer == rank) continue;
          traffic.add(problem.cluster.link_between(rank, peer),
                      rows * elements * config.element_bytes, 1);
        }
        for (std::size_t link = 0; link < kNumLinkClasses; ++link) {
          pass.bytes[link] += traffic.bytes[link];
        }
        slowest = std::max(slowest, exchange_seconds(problem.cluster, traffic));
      }
      // Rows are put into order by head before they are sent, or after they came: read and written.
      const std::int64_t packed = 2 * rows * elements * degree * config.element_bytes;
      pass.seconds +=
          slowest + static_cast<double>(packed) / problem.cluster.memory_bytes_per_second;
    }
  }
  const std::int64_t elements = query + out + keys;
  figures.memory_bytes += 2 * rows * degree * elements * config.element_bytes;
}

Figures simulate_ulysses(const Problem& problem) {
  const PlanConfig& config = problem.config;
  Figures figures;
  figures.refusal = refusal_of_heads(config, config.num_ranks);
  if (!figures.refusal.empty()) return figures;
  const RowParts parts{problem.mask.rows_q, config.num_ranks, RowOrder::Contiguous};
  figures.memory_bytes = parts.rows_of_member() * row_memory(config);
  add_all_to_alls(problem, config.num_ranks, parts.rows_of_member(), figures);
  const Work work = work_of(problem.mask.slices);
  const std::int32_t heads = config.num_heads_q / config.num_ranks;
  for (const Pass pass : {Pass::Forward, Pass::Backward}) {
    PassFigures& target = figures.passes[static_cast<std::size_t>(pass)];
    target.attending_seconds = attend_seconds(problem.cluster, config, work, pass, heads);
    target.seconds += target.attending_seconds;
  }
  figures.rank_work.assign(static_cast<std::size_t>(config.num_ranks),
                           pairs_of_heads(work.area, heads));
  return figures;
}

Figures simulate_usp(const Problem& problem) {
  const PlanConfig& config = problem.config;
  const std::int32_t degree =
      problem.ulysses_degree > 0 ? problem.ulysses_degree : largest_degree(problem);
  Figures figures;
  if (config.num_ranks % degree != 0) {
    figures.refusal = std::to_string(config.num_ranks) + " ranks are no multiple of the " +
                      std::to_string(degree) + " that share heads";
  } else if (config.num_heads_kv % degree != 0 || config.num_heads_q % degree != 0) {
    figures.refusal = std::to_string(config.num_heads_q) + ":" +
                      std::to_string(config.num_heads_kv) + " heads cannot be shared by " +
                      std::to_string(degree) + " ranks of a ring";
  }
  if (!figures.refusal.empty()) return figures;
  const RingShape shape{.parts = {problem.mask.rows_q, config.num_ranks / degree, RowOrder::Zigzag},
                        .heads_shared = degree};
  const std::int64_t rows = (shape.parts.rows_of_member() + degree - 1) / degree;
  figures.memory_bytes = rows * row_memory(config);
  if (degree > 1) add_all_to_alls(problem, degree, rows, figures);
  add_ring(problem, shape, figures);
  return figures;
}

}  // namespace magi::simulate
