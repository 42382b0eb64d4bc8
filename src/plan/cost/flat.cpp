// SPDX-License-Identifier: Apache-2.0
#include "plan/cost/flat.hpp"

#include <string>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "plan/cost/timeline.hpp"

namespace magi {
namespace planner {
namespace {

Placement flat_placement(const Placement& placement, std::int32_t num_shares) {
  std::vector<std::int32_t> chunk_rank;
  chunk_rank.reserve(placement.chunk_rank.size() * static_cast<std::size_t>(num_shares));
  for (std::int32_t share = 0; share < num_shares; ++share) {
    chunk_rank.insert(chunk_rank.end(), placement.chunk_rank.begin(), placement.chunk_rank.end());
  }
  const std::int64_t rows = rows_per_share(placement) * num_shares;
  return placement_from_chunks(static_cast<std::int32_t>(rows), placement.chunk_size,
                               placement.num_ranks, std::move(chunk_rank));
}

Mask flat_mask(const Plan& plan) {
  const auto rows_q = static_cast<std::int32_t>(rows_per_share(plan.placement_q));
  const auto rows_k = static_cast<std::int32_t>(rows_per_share(plan.placement_k));
  const std::int32_t num_shares = plan.num_head_shares;
  Mask mask{rows_q * num_shares, rows_k * num_shares, {}};
  mask.slices.reserve(plan.mask.slices.size() * static_cast<std::size_t>(num_shares));
  for (std::int32_t share = 0; share < num_shares; ++share) {
    for (const BandSlice& slice : plan.mask.slices) {
      mask.slices.push_back(shift(slice, share * rows_q, share * rows_k));
    }
  }
  return mask;
}

/// Modulo 2^64: a broken plan may hold any numbers.
void add_to(std::int64_t& value, std::int64_t more) {
  value = static_cast<std::int64_t>(static_cast<std::uint64_t>(value) +
                                    static_cast<std::uint64_t>(more));
}

/// Turns counts of rows of the sequence into those of per-share rows. One that is wrong stays wrong
/// by as much.
void count_flat_rows(const Plan& plan, Plan& flat) {
  PlanReport& report = flat.report;
  for (std::size_t r = 0; r < report.rank_rows.size() && r < flat.ranks.size(); ++r) {
    const auto rank = static_cast<std::int32_t>(r);
    add_to(report.rank_rows[r], flat.placement_q.rows_of(rank) - plan.placement_q.rows_of(rank));
  }
  const PlanConfig& config = flat.config;
  const std::int64_t row_bytes = std::int64_t{config.num_heads_kv} *
                                 (config.head_dim_qk + config.head_dim_v) * config.element_bytes;
  const std::int64_t more_rows =
      flat.mask.rows_k - std::int64_t{plan.mask.rows_k} * plan.num_head_shares;
  add_to(report.ring_bytes, (config.num_ranks - 1) * more_rows * row_bytes);
}

}  // namespace

std::int64_t rows_per_share(const Placement& placement) {
  return std::int64_t{placement.num_chunks()} * placement.chunk_size;
}

std::int32_t rows_per_share(const Placement& placement, std::int32_t rank) {
  return static_cast<std::int32_t>(placement.chunks_of(rank).size()) * placement.chunk_size;
}

void validate_shares(const Plan& plan) {
  const std::int32_t num_shares = plan.num_head_shares;
  const PlanConfig& config = plan.config;
  if (num_shares < 1 || config.num_heads_kv % num_shares != 0 ||
      config.num_ranks % num_shares != 0) {
    throw invalid("num_head_shares", num_shares,
                  "common divisors of num_ranks, " + std::to_string(config.num_ranks) +
                      ", and num_heads_kv, " + std::to_string(config.num_heads_kv));
  }
  for (const Placement* placement : {&plan.placement_q, &plan.placement_k}) {
    const std::int64_t rows = rows_per_share(*placement) * num_shares;
    if (num_shares == 1 || rows <= kMaxRows) continue;
    throw invalid("rows of all head shares", rows, "at most " + std::to_string(kMaxRows));
  }
}

Plan flat_shell(const Plan& plan) {
  Plan flat{.mask = flat_mask(plan), .config = plan.config};
  flat.config.num_heads_q /= plan.num_head_shares;
  flat.config.num_heads_kv /= plan.num_head_shares;
  flat.config.head_shares = 0;
  flat.config.work = WorkMode::Auto;  // whatever moves
  flat.placement_q = flat_placement(plan.placement_q, plan.num_head_shares);
  flat.placement_k = flat_placement(plan.placement_k, plan.num_head_shares);
  return flat;
}

}  // namespace planner

Plan flat_plan(const Plan& plan) {
  planner::validate_shares(plan);
  if (plan.num_head_shares == 1) return plan;
  Plan flat = planner::flat_shell(plan);
  flat.stages_in_flight = plan.stages_in_flight;
  flat.exchanges = plan.exchanges;
  flat.ranks = plan.ranks;
  flat.transfers = plan.transfers;
  flat.report = plan.report;
  flat.digest = plan.digest;
  planner::count_flat_rows(plan, flat);
  // The steps are those of per-share rows; copying tensors to them is none.
  const double forward = static_cast<double>(planner::flat_copies_ns(plan, false)) * 1e-9;
  flat.report.forward_seconds -= forward;
  flat.report.exposed_comm_seconds -= forward;
  flat.report.backward_seconds -= static_cast<double>(planner::flat_copies_ns(plan, true)) * 1e-9;
  return flat;
}

}  // namespace magi
