// SPDX-License-Identifier: Apache-2.0
#include "draw/schedule.hpp"

#include <algorithm>
#include <set>

namespace magi::draw {
namespace {

/// What one rank moves to fill one key segment of its own, and of its peers.
struct Load {
  std::int64_t rows_in = 0;
  std::int64_t rows_out = 0;
  std::set<std::int32_t> peers_in;
  std::set<std::int32_t> peers_out;
};

/// [ranks][segments]
using Loads = std::vector<std::vector<Load>>;

Loads loads_of(const Plan& plan) {
  std::size_t num_segments = 1;
  for (const RankPlan& rank : plan.ranks) {
    num_segments = std::max(num_segments, rank.k.segments.size());
  }
  Loads loads(plan.ranks.size(), std::vector<Load>(num_segments));
  for (const Transfer& transfer : plan.transfers) {
    const auto segment = static_cast<std::size_t>(transfer.dst_segment);
    Load& in = loads[static_cast<std::size_t>(transfer.dst)][segment];
    in.rows_in += transfer.num_rows;
    in.peers_in.insert(transfer.src);
    Load& out = loads[static_cast<std::size_t>(transfer.src)][segment];
    out.rows_out += transfer.num_rows;
    out.peers_out.insert(transfer.dst);
  }
  return loads;
}

std::int64_t pairs_of(const RankPlan& rank, const Wave& wave) {
  std::int64_t pairs = 0;
  for (std::int32_t s = wave.slices.begin; s < wave.slices.end; ++s) {
    pairs += area(rank.slices[static_cast<std::size_t>(s)]);
  }
  return pairs;
}

/// The key segment whose transfers belong to a wave. With overlap degree 0 the one wave waits for
/// all of segment 1, also on a rank that only sends.
std::size_t transfer_segment(const Plan& plan, const RankPlan& rank, const Wave& wave) {
  const bool is_combined = plan.config.overlap_degree == 0 && rank.k.segments.size() > 1;
  return is_combined ? 1 : static_cast<std::size_t>(wave.k_segment);
}

RankSchedule schedule_of(const Plan& plan, const RankPlan& rank, const std::vector<Load>& loads) {
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
    const Load& load = loads[transfer_segment(plan, rank, wave)];
    const auto index = static_cast<std::int32_t>(w);
    const std::int64_t rows = std::max(load.rows_in, load.rows_out);
    if (rows > 0 && wave.heads.size() > 0) {
      const std::size_t peers = std::max(load.peers_in.size(), load.peers_out.size());
      const double begin = link_free;
      link_free +=
          static_cast<double>(rows * wave.heads.size() * row_bytes) / config.cost.bytes_per_second +
          static_cast<double>(peers) * config.cost.seconds_per_transfer;
      schedule.transfers.push_back({.wave = index,
                                    .begin = begin,
                                    .end = link_free,
                                    .amount = load.rows_in * wave.heads.size() * row_bytes});
    }
    const std::int64_t work = pairs_of(rank, wave) * wave.heads.size() * group;
    if (work == 0) continue;
    const double begin = load.rows_in > 0 ? std::max(chip_free, link_free) : chip_free;
    chip_free = begin + config.cost.seconds_per_launch +
                static_cast<double>(work) * flops_per_pair / config.cost.flops_per_second;
    schedule.attention.push_back({.wave = index, .begin = begin, .end = chip_free, .amount = work});
  }
  return schedule;
}

}  // namespace

std::vector<RankSchedule> forward_schedule(const Plan& plan) {
  const Loads loads = loads_of(plan);
  std::vector<RankSchedule> schedules;
  schedules.reserve(plan.ranks.size());
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    schedules.push_back(schedule_of(plan, plan.ranks[rank], loads[rank]));
  }
  return schedules;
}

}  // namespace magi::draw
