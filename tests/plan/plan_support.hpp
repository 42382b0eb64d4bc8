// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "magi/mask_builders.hpp"
#include "magi/plan.hpp"
#include "plan/cost/report.hpp"
#include "plan/placements.hpp"
#include "plan/tables/steps.hpp"
#include "support/random_mask.hpp"

// Brute-force views of a plan and random plan inputs for the plan tests.
namespace magi {

/// Global row behind each row of each segment of a rank (-1: nothing arrives there).
inline std::vector<std::vector<std::int32_t>> segment_rows(const Plan& plan, std::int32_t rank,
                                                           Space space = Space::Keys) {
  const RankPlan& own = plan.ranks[static_cast<std::size_t>(rank)];
  const bool is_keys = space == Space::Keys;
  const Placement& placement = is_keys ? plan.placement_k : plan.placement_q;
  std::vector<std::vector<std::int32_t>> rows;
  for (const Segment& segment : (is_keys ? own.k : own.q).segments) {
    rows.emplace_back(static_cast<std::size_t>(segment.num_rows), -1);
  }
  rows[0] = global_rows(placement, rank);
  for (const Transfer& t : plan.transfers) {
    if (t.dst != rank || t.space != space) continue;
    const std::vector<std::int32_t> source = global_rows(placement, t.src);
    for (std::int32_t i = 0; i < t.num_rows; ++i) {
      auto& slot = rows.at(static_cast<std::size_t>(t.dst_segment))
                       .at(static_cast<std::size_t>(t.dst_row + i));
      slot = slot == -1 ? source.at(static_cast<std::size_t>(t.src_row + i)) : -2;
    }
  }
  return rows;
}

/// One causal document.
inline Mask causal(std::int32_t rows) {
  return {rows, rows, {band_slice({0, rows}, {0, rows}, MaskType::Causal)}};
}

/// Packed causal documents of `shortest` to 256 * `shortest` rows.
inline Mask random_documents(RandomStream& random, std::int32_t rows, std::int32_t shortest) {
  std::vector<std::int32_t> ends{0};
  while (ends.back() < rows) {
    const std::int32_t length = shortest << random.between(0, 7);
    ends.push_back(std::min(ends.back() + random.between(length, 2 * length), rows));
  }
  return mask_from_cu_seqlens(ends, ends, {.is_causal = true});
}

/// Of a forward and a backward.
inline double step_seconds(const Plan& plan) {
  return plan.report.forward_seconds + plan.report.backward_seconds;
}

/// For each row the last one before it that it sees, -1 without one.
inline std::vector<std::int32_t> parents_of(const Mask& mask) {
  std::vector<std::int32_t> parents(static_cast<std::size_t>(mask.rows_q), -1);
  for (std::int32_t row = 0; row < mask.rows_q; ++row) {
    std::int32_t& parent = parents[static_cast<std::size_t>(row)];
    for (const BandSlice& slice : mask.slices) {
      const Range keys = visible_keys(slice, row);
      const std::int32_t last = std::min(keys.end, row) - 1;
      if (last >= keys.begin) parent = std::max(parent, last);
    }
  }
  return parents;
}

/// PlanReport::rank_runs, row by row. Throws std::out_of_range for a placement that is none.
inline std::vector<std::int64_t> runs_after_others(const Mask& mask, const Placement& placement) {
  if (placement.num_ranks < 1 || placement.chunk_size < 1) throw std::out_of_range("placement");
  std::vector<std::int64_t> counts(static_cast<std::size_t>(placement.num_ranks), 0);
  if (mask.rows_q != mask.rows_k) return counts;
  const auto owner = [&](std::int32_t row) {
    return placement.chunk_rank.at(static_cast<std::size_t>(row / placement.chunk_size));
  };
  const std::vector<std::int32_t> parents = parents_of(mask);
  for (std::int32_t row = 0; row < mask.rows_q; ++row) {
    const std::int32_t parent = parents[static_cast<std::size_t>(row)];
    if (parent == -1 || owner(parent) == owner(row)) continue;
    ++counts.at(static_cast<std::size_t>(owner(row)));
  }
  return counts;
}

/// A plan by hand with a second query segment, full attention of 64 rows on two ranks: rank 1
/// fetches rank 0's keys for its own queries, and computes for rank 0 what rank 0's queries attend
/// to on rank 1's keys.
inline Plan rectangle_plan() {
  Plan plan;
  plan.mask = {64, 64, {band_slice({0, 64}, {0, 64}, MaskType::Full)}};
  plan.config = {.num_ranks = 2, .num_heads_q = 4, .num_heads_kv = 2};
  plan.placement_q = plan.placement_k = placement_from_chunks(64, 32, 2, {0, 1});
  for (const Role role :
       {Role::KeysValues, Role::Queries, Role::Results, Role::KeyGradients, Role::QueryGradients}) {
    plan.exchanges.push_back({.role = role, .segment = 1, .heads = {0, 2}, .stage = 1});
  }
  plan.ranks.resize(2);
  for (std::int32_t r = 0; r < 2; ++r) {
    RankPlan& rank = plan.ranks[static_cast<std::size_t>(r)];
    rank.q.segments = rank.k.segments = {{r, 32}, {kManyOwners, 32 * r}};
    rank.slices.assign(r == 0 ? 1 : 3, BandSlice{0, 32, 0, 32});
    rank.attends = {{.heads = {0, 2}, .slices = {0, 1}}};
  }
  plan.ranks[1].attends.push_back(
      {.k_segment = 1, .heads = {0, 2}, .slices = {1, 2}, .is_merging = true});
  plan.ranks[1].attends.push_back({.q_segment = 1, .heads = {0, 2}, .slices = {2, 3}});
  for (RankPlan& rank : plan.ranks) planner::make_steps(plan.exchanges, rank);
  for (const Space space : {Space::Keys, Space::Queries}) {
    plan.transfers.push_back(
        {.src = 0, .dst = 1, .dst_segment = 1, .space = space, .num_rows = 32});
  }
  plan.report = planner::make_report(plan);
  plan.digest = plan_digest(plan);
  return plan;
}

/// A random placement of every chunk, any layout, ranks with nothing included.
inline Placement random_placement(RandomStream& random, std::int32_t rows, std::int32_t num_ranks) {
  const std::int32_t chunk = random.between(1, 9);
  const bool is_padded = random.chance(50);
  const std::int32_t unit = chunk * num_ranks;
  const std::int32_t padded = is_padded ? (rows + unit - 1) / unit * unit : rows;
  std::vector<std::int32_t> chunk_rank(static_cast<std::size_t>((padded + chunk - 1) / chunk));
  for (std::int32_t& rank : chunk_rank) rank = random.between(0, num_ranks - 1);
  return placement_from_chunks(padded, chunk, num_ranks, std::move(chunk_rank));
}

inline PlanConfig random_config(RandomStream& random) {
  PlanConfig config;
  config.num_ranks = random.between(1, 8);
  config.num_heads_kv = random.chance(40) ? 1 : random.between(2, 4);
  config.num_heads_q = config.num_heads_kv * random.between(1, 4);
  config.head_dim_qk = random.between(1, 32);
  config.head_dim_v = random.between(1, 32);
  if (random.chance(20)) {
    config.overlap_degree = std::nullopt;
  } else {
    config.overlap_degree = random.between(0, 5);
  }
  config.stage_mode = static_cast<StageMode>(random.between(0, 2));
  config.min_stage_rows = random.between(1, 12);
  if (random.chance(40)) config.devices_per_node = random.between(1, 5);
  return config;
}

/// Rates at which launches, transfers and work of small plans all matter.
inline CostModel slow_cost(RandomStream& random) {
  return {.flops_per_second = 1e9 * random.between(1, 20),
          .bytes_per_second = 1e9 * random.between(1, 4),
          .memory_bytes_per_second = 1e11,
          .seconds_per_transfer = 1e-8,
          .seconds_per_launch = 1e-9 * random.between(0, 500),
          .network_bytes_per_second = 1e8 * random.between(1, 10),
          .network_seconds_per_transfer = 1e-7};
}

/// A plan on a random mask and random placements (shared by q and k where the mask is square).
inline Plan random_plan(RandomStream& random) {
  RandomMaskOptions options;
  options.is_square = random.chance(50);
  const Mask mask = random_mask(random, options);
  const PlanConfig config = random_config(random);
  const Placement q = random_placement(random, mask.rows_q, config.num_ranks);
  const Placement k =
      options.is_square ? q : random_placement(random, mask.rows_k, config.num_ranks);
  return make_plan_on(mask, config, q, k);
}

}  // namespace magi
