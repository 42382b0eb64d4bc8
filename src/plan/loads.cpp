// SPDX-License-Identifier: Apache-2.0
#include "plan/loads.hpp"

#include <algorithm>

namespace magi::planner {
namespace {

/// Pairs of each attend; adds those of all slices to `total`. Attends that share slices have all
/// heads between them, and the one that has the first head counts.
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

PlanLoads::PlanLoads(const Plan& plan) {
  for (const RankPlan& rank : plan.ranks) {
    num_segments_ = std::max({num_segments_, rank.k.segments.size(), rank.q.segments.size()});
    areas_.push_back(areas_of(rank, rank_areas_.emplace_back(0)));
  }
  traffic_.resize(plan.ranks.size() * 2 * num_segments_);
  // Transfers are ordered by what they fill, so a new peer shows as a change of its last segment.
  std::vector<std::size_t> last_filled(plan.ranks.size(), traffic_.size());
  for (const Transfer& t : plan.transfers) {
    if (t.src == t.dst) continue;
    const std::size_t filled = traffic_index(t.dst, t.space, t.dst_segment);
    SegmentTraffic& in = traffic_[filled];
    SegmentTraffic& out = traffic_[traffic_index(t.src, t.space, t.dst_segment)];
    in.rows_in += t.num_rows;
    out.rows_out += t.num_rows;
    std::size_t& last = last_filled[static_cast<std::size_t>(t.src)];
    if (last == filled) continue;
    last = filled;
    ++in.peers_in;
    ++out.peers_out;
  }
}

std::int64_t bytes_per_row(const PlanConfig& config, const Exchange& exchange, bool is_backward) {
  return exchange.heads.size() * elements_per_head(config, exchange.role, is_backward) *
         config.element_bytes;
}

std::int64_t bytes_per_row(const PlanConfig& config) {
  return bytes_per_row(config, {.heads = {0, config.num_heads_kv}}, false);
}

}  // namespace magi::planner
