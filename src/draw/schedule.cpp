// SPDX-License-Identifier: Apache-2.0
#include "draw/schedule.hpp"

#include <algorithm>
#include <set>

namespace magi::draw {
namespace {

/// Rows and peers behind each k segment of one rank.
struct Arrivals {
  std::vector<std::int64_t> rows;  ///< [segments]
  std::vector<std::set<std::int32_t>> peers;
};

std::vector<Arrivals> arrivals_of(const Plan& plan) {
  std::vector<Arrivals> arrivals(plan.ranks.size());
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    arrivals[rank].rows.resize(plan.ranks[rank].k.segments.size());
    arrivals[rank].peers.resize(plan.ranks[rank].k.segments.size());
  }
  for (const Transfer& transfer : plan.transfers) {
    Arrivals& target = arrivals[static_cast<std::size_t>(transfer.dst)];
    const auto segment = static_cast<std::size_t>(transfer.dst_segment);
    target.rows[segment] += transfer.num_rows;
    target.peers[segment].insert(transfer.src);
  }
  return arrivals;
}

std::int64_t pairs_of(const RankPlan& rank, const Wave& wave) {
  std::int64_t pairs = 0;
  for (std::int32_t s = wave.slices.begin; s < wave.slices.end; ++s) {
    pairs += area(rank.slices[static_cast<std::size_t>(s)]);
  }
  return pairs;
}

RankSchedule schedule_of(const Plan& plan, const RankPlan& rank, const Arrivals& arrivals) {
  const PlanConfig& config = plan.config;
  const std::int64_t row_bytes =
      std::int64_t{config.head_dim_qk + config.head_dim_v} * config.element_bytes;
  const double flops_per_pair = 2.0 * (config.head_dim_qk + config.head_dim_v);
  const std::int32_t group = config.num_heads_q / config.num_heads_kv;
  RankSchedule schedule;
  double link_free = 0.0;
  double chip_free = 0.0;
  for (std::size_t w = 0; w < rank.waves.size(); ++w) {
    const Wave& wave = rank.waves[w];
    const auto segment = static_cast<std::size_t>(wave.k_segment);
    const auto index = static_cast<std::int32_t>(w);
    double ready = 0.0;
    // Segment 0 is the rank's own rows; a segment read by several waves brings each wave's heads.
    if (segment > 0 && arrivals.rows[segment] > 0) {
      const std::int64_t bytes = arrivals.rows[segment] * wave.heads.size() * row_bytes;
      const double begin = link_free;
      link_free +=
          static_cast<double>(bytes) / config.cost.bytes_per_second +
          static_cast<double>(arrivals.peers[segment].size()) * config.cost.seconds_per_transfer;
      schedule.transfers.push_back(
          {.wave = index, .begin = begin, .end = link_free, .amount = bytes});
      ready = link_free;
    }
    const std::int64_t work = pairs_of(rank, wave) * wave.heads.size() * group;
    if (work == 0) continue;
    const double begin = std::max(chip_free, ready);
    chip_free = begin + config.cost.seconds_per_launch +
                static_cast<double>(work) * flops_per_pair / config.cost.flops_per_second;
    schedule.attention.push_back({.wave = index, .begin = begin, .end = chip_free, .amount = work});
  }
  return schedule;
}

}  // namespace

std::vector<RankSchedule> forward_schedule(const Plan& plan) {
  const std::vector<Arrivals> arrivals = arrivals_of(plan);
  std::vector<RankSchedule> schedules;
  schedules.reserve(plan.ranks.size());
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    schedules.push_back(schedule_of(plan, plan.ranks[rank], arrivals[rank]));
  }
  return schedules;
}

}  // namespace magi::draw
