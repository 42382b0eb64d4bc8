// SPDX-License-Identifier: Apache-2.0
#include "plan/cost/loads.hpp"

#include <algorithm>

namespace magi::planner {
namespace {

/// Pairs of each attention call; adds those of all slices to `total`. Attends that share slices
/// have all heads between them, and the one that has the first head counts.
std::vector<std::int64_t> areas_of(const RankPlan& rank, std::int64_t& total) {
  std::vector<std::int64_t> areas;
  areas.reserve(rank.attends.size());
  for (std::size_t i = 0; i < rank.attends.size(); ++i) {
    const Range slices = rank.attends[i].slices;
    const bool is_known = i > 0 && slices == rank.attends[i - 1].slices;
    std::int64_t pairs = is_known ? areas.back() : 0;
    for (std::int32_t s = slices.begin; s < slices.end && !is_known; ++s) {
      pairs += area(rank.slices[static_cast<std::size_t>(s)]);
    }
    areas.push_back(pairs);
    if (rank.attends[i].heads.begin == 0) total += pairs;
  }
  return areas;
}

/// Elements of one row and head; queries have num_heads_q / num_heads_kv heads for each of keys.
std::int64_t elements_per_head(const PlanConfig& config, Role role, bool is_backward) {
  const std::int64_t group = config.num_heads_q / config.num_heads_kv;
  switch (role) {
    case Role::Queries:
      return group * (config.head_dim_qk + (is_backward ? 2 * config.head_dim_v : 0));
    case Role::Results:
      return group * config.head_dim_v;
    case Role::QueryGradients:
      return group * config.head_dim_qk;
    default:
      return config.head_dim_qk + config.head_dim_v;
  }
}

}  // namespace

PlanLoads::PlanLoads(const Plan& plan, std::int32_t num_shares)
    : by_node_(moved_by_node(plan)), whole_(plan, num_shares) {
  for (const RankPlan& rank : plan.ranks) {
    num_segments_ = std::max({num_segments_, rank.k.segments.size(), rank.q.segments.size()});
  }
  count_areas(plan);
  traffic_.resize(plan.ranks.size() * 2 * num_segments_);
  count_traffic(plan);
}

void PlanLoads::count_areas(const Plan& plan) {
  areas_.clear();
  rank_areas_.clear();
  whole_.find(plan);
  for (const RankPlan& rank : plan.ranks) {
    areas_.push_back(areas_of(rank, rank_areas_.emplace_back(0)));
  }
}

void PlanLoads::count_traffic(const Plan& plan) {
  const std::int32_t node =
      has_nodes(plan.config) ? plan.config.devices_per_node : plan.config.num_ranks;
  const auto links_of = [node](SegmentTraffic& traffic, const MovedRows& move) -> LinkTraffic& {
    if (move.is_onward) return traffic.onward;
    return move.from / node == move.to / node ? traffic.inside : traffic.network;
  };
  // Transfers are ordered by what they fill, so a new peer shows as a change of its last segment;
  // rows that go by node are summed for each pair.
  std::vector<std::size_t> last_filled(plan.ranks.size(), 2 * traffic_.size());
  visit_moves(plan, by_node_, [&](const MovedRows& move) {
    const std::size_t filled = traffic_index(move.to, move.space, move.segment);
    LinkTraffic& in = links_of(traffic_[filled], move);
    LinkTraffic& out = links_of(traffic_[traffic_index(move.from, move.space, move.segment)], move);
    in.rows_in += move.num_rows;
    out.rows_out += move.num_rows;
    std::size_t& last = last_filled[static_cast<std::size_t>(move.from)];
    const std::size_t filled_by = 2 * filled + (move.is_onward ? 1 : 0);
    if (last == filled_by) return;
    last = filled_by;
    ++in.peers_in;
    ++out.peers_out;
  });
}

std::int64_t bytes_per_row(const PlanConfig& config, const Exchange& exchange, bool is_backward) {
  return exchange.heads.size() * elements_per_head(config, exchange.role, is_backward) *
         config.element_bytes;
}

std::int64_t bytes_per_row(const PlanConfig& config) {
  return bytes_per_row(config, {.heads = {0, config.num_heads_kv}}, false);
}

}  // namespace magi::planner
