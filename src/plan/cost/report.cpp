// SPDX-License-Identifier: Apache-2.0
#include "plan/cost/report.hpp"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/math.hpp"
#include "plan/cost/bound.hpp"
#include "plan/cost/flat.hpp"
#include "plan/cost/timeline.hpp"
#include "plan/value/runs.hpp"

namespace magi::planner {
namespace {

double max_over_mean(const std::vector<std::int64_t>& values) {
  std::int64_t total = 0;
  for (const std::int64_t value : values) total += value;
  if (total == 0) return 1.0;
  const auto most = static_cast<double>(*std::max_element(values.begin(), values.end()));
  return most * static_cast<double>(values.size()) / static_cast<double>(total);
}

using RoleBytes = std::array<std::int64_t, kNumRoles>;

/// Destinations counted side by side: their bytes from one rank share a cache line, and a table of
/// all pairs of many ranks does not fit in a cache.
constexpr std::size_t kSideBySide = 8;
using RowCounts = std::vector<std::array<std::int64_t, kSideBySide>>;

/// Counts `rows_from` [num_ranks], the rows that come to the ranks from `first` on.
void add_bytes_of_ranks(const RowCounts& rows_from, std::size_t first, Space space,
                        const RoleBytes& role_bytes, PlanReport& report) {
  const std::size_t num_ranks = rows_from.size();
  const std::size_t count = std::min(kSideBySide, num_ranks - first);
  const auto bytes_of = [&](Role role) { return role_bytes[static_cast<std::size_t>(role)]; };
  const bool is_keys = space == Space::Keys;
  const std::int64_t there = bytes_of(is_keys ? Role::KeysValues : Role::Queries);
  const std::int64_t back = is_keys ? 0 : bytes_of(Role::Results);
  RowCounts::value_type rows_to{};
  for (std::size_t src = 0; src < num_ranks; ++src) {
    // No branch: which ranks send nothing is as good as random where there are many.
    std::int64_t* bytes = report.pair_bytes.data() + src * num_ranks + first;
    for (std::size_t i = 0; i < count; ++i) {
      bytes[i] += rows_from[src][i] * there;
      rows_to[i] += rows_from[src][i];
    }
    for (std::size_t i = 0; i < count && !is_keys; ++i) {
      report.pair_bytes[(first + i) * num_ranks + src] += rows_from[src][i] * back;
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    report.total_bytes += rows_to[i] * (there + back);
    if (is_keys) report.remote_rows[first + i] += rows_to[i];
  }
}

/// Counts a plan in which rows go straight to the ranks that need them.
void count_transfers(const Plan& plan, const RoleBytes& role_bytes, PlanReport& report) {
  RowCounts rows_from(plan.ranks.size());
  // Transfers are ordered by (space, dst).
  for (auto next = plan.transfers.begin(); next != plan.transfers.end();) {
    const Space space = next->space;
    const std::size_t first = static_cast<std::size_t>(next->dst) / kSideBySide * kSideBySide;
    std::ranges::fill(rows_from, RowCounts::value_type{});
    for (; next != plan.transfers.end() && next->space == space; ++next) {
      const std::size_t lane = static_cast<std::size_t>(next->dst) - first;
      if (lane >= kSideBySide) break;
      if (next->src == next->dst) continue;  // a copy of own rows
      rows_from[static_cast<std::size_t>(next->src)][lane] += next->num_rows;
    }
    add_bytes_of_ranks(rows_from, first, space, role_bytes, report);
  }
}

/// Counts any plan, one move after the other.
void count_moves(const Plan& plan, const PlanLoads& loads, const RoleBytes& role_bytes,
                 PlanReport& report) {
  const std::size_t num_ranks = plan.ranks.size();
  const auto count = [&](std::int32_t from, std::int32_t to, std::int64_t rows, Role role) {
    const std::int64_t bytes = rows * role_bytes[static_cast<std::size_t>(role)];
    report.pair_bytes[static_cast<std::size_t>(from) * num_ranks + static_cast<std::size_t>(to)] +=
        bytes;
    report.total_bytes += bytes;
  };
  visit_moves(plan, loads.by_node(), [&](const MovedRows& move) {
    if (move.space == Space::Keys) {
      report.remote_rows[static_cast<std::size_t>(move.to)] += move.num_rows;
      count(move.from, move.to, move.num_rows, Role::KeysValues);
    } else {
      count(move.from, move.to, move.num_rows, Role::Queries);
      count(move.to, move.from, move.num_rows, Role::Results);
    }
  });
}

void count_bytes(const Plan& plan, const PlanLoads& loads, PlanReport& report) {
  const std::size_t num_ranks = plan.ranks.size();
  const Range all_heads{0, heads_per_share(plan)};
  RoleBytes role_bytes{};
  for (std::size_t role = 0; role < role_bytes.size(); ++role) {
    role_bytes[role] =
        bytes_per_row(plan.config, {.role = static_cast<Role>(role), .heads = all_heads}, false);
  }
  report.pair_bytes.assign(num_ranks * num_ranks, 0);
  report.remote_rows.assign(num_ranks, 0);
  if (loads.by_node().empty()) {
    count_transfers(plan, role_bytes, report);
  } else {
    count_moves(plan, loads, role_bytes, report);
  }
  const std::int64_t row_bytes = bytes_per_row(plan.config);
  report.ring_bytes = static_cast<std::int64_t>(num_ranks - 1) * plan.mask.rows_k * row_bytes;
}

/// Bytes of a rank's receive segments in the backward.
std::int64_t memory_of(const Plan& plan, const WholeReturns& whole, const RankPlan& rank) {
  const PlanConfig& config = plan.config;
  constexpr std::int64_t kSumBytes = 4;
  const auto row_bytes = [&](const Exchange& exchange, Role back) {
    const auto elements = [&](Role role) {
      return bytes_per_row(config, {.role = role, .heads = exchange.heads}, true) /
             config.element_bytes;
    };
    const std::int64_t numbers =  // lse and delta
        exchange.role == Role::Queries
            ? 2 * config.num_heads_q / config.num_heads_kv * exchange.heads.size()
            : 0;
    return elements(exchange.role) * config.element_bytes +
           elements(back) * (whole.of(back) ? config.element_bytes : kSumBytes) +
           numbers * kSumBytes;
  };
  std::int64_t bytes = 0;
  std::vector<std::int64_t> turns(static_cast<std::size_t>(plan.stages_in_flight));
  for (const Exchange& exchange : plan.exchanges) {
    if (is_returning(exchange.role)) continue;
    const bool is_keys = space_of(exchange.role) == Space::Keys;
    const auto segment = static_cast<std::size_t>(exchange.segment);
    const std::int64_t rows = (is_keys ? rank.k : rank.q).segments[segment].num_rows;
    const std::int64_t needed =
        rows * row_bytes(exchange, is_keys ? Role::KeyGradients : Role::QueryGradients);
    bytes += needed;
    if (turns.empty()) continue;
    std::int64_t& turn = turns[static_cast<std::size_t>(exchange.stage) % turns.size()];
    turn = std::max(turn, needed);
  }
  return turns.empty() ? bytes : std::accumulate(turns.begin(), turns.end(), std::int64_t{0});
}

void predict(const Plan& plan, const PlanLoads& loads, PlanReport& report) {
  const PlanTimes times = predict_plan(plan, loads);
  // Layers follow one another, and each waits for the slowest rank.
  const auto most_runs = static_cast<double>(*std::ranges::max_element(report.rank_runs));
  const double runs_seconds = most_runs * plan.config.cost.seconds_per_run;
  report.forward_seconds = static_cast<double>(times.forward_ns) * 1e-9 + runs_seconds;
  report.backward_seconds = static_cast<double>(times.backward_ns) * 1e-9 + runs_seconds;
  report.exposed_comm_seconds = static_cast<double>(times.forward_ns - times.busiest_ns) * 1e-9;
}

}  // namespace

std::int64_t exchange_memory(const Plan& plan, const PlanLoads& loads) {
  std::int64_t most = 0;
  for (const RankPlan& rank : plan.ranks) {
    most = std::max(most, memory_of(plan, loads.whole(), rank));
  }
  return most;
}

PlanReport make_report(const Plan& plan) { return make_report(plan, PlanLoads(plan)); }

PlanReport make_report(const Plan& plan, const PlanLoads& loads) {
  PlanReport report;
  count_bytes(plan, loads, report);
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    report.rank_area.push_back(loads.rank_area(static_cast<std::int32_t>(r)));
    report.rank_rows.push_back(plan.placement_q.rows_of(static_cast<std::int32_t>(r)));
    report.rank_memory.push_back(memory_of(plan, loads.whole(), plan.ranks[r]));
  }
  report.rank_runs = count_runs(plan.mask, plan.placement_q);
  report.balance = max_over_mean(report.rank_area);
  const std::int64_t most_area = *std::ranges::max_element(report.rank_area);
  const BoundLimits limits{
      .num_ranks = plan.config.num_ranks,
      .max_rows = *std::max_element(report.rank_rows.begin(), report.rank_rows.end()),
      .max_area = ceil_div<std::int64_t>(most_area, plan.num_head_shares),
      .is_shared = plan.placement_q == plan.placement_k};
  report.lower_bound_bytes = lower_bound_rows(plan.mask, limits) * bytes_per_row(plan.config);
  predict(plan, loads, report);
  return report;
}

}  // namespace magi::planner
