// SPDX-License-Identifier: Apache-2.0
#include "plan/report.hpp"

#include <algorithm>
#include <array>

#include "plan/bound.hpp"
#include "plan/loads.hpp"
#include "plan/timeline.hpp"

namespace magi::planner {
namespace {

double max_over_mean(const std::vector<std::int64_t>& values) {
  std::int64_t total = 0;
  for (const std::int64_t value : values) total += value;
  if (total == 0) return 1.0;
  const auto most = static_cast<double>(*std::max_element(values.begin(), values.end()));
  return most * static_cast<double>(values.size()) / static_cast<double>(total);
}

void count_bytes(const Plan& plan, PlanReport& report) {
  const std::size_t num_ranks = plan.ranks.size();
  const Range all_heads{0, plan.config.num_heads_kv};
  std::array<std::int64_t, kNumRoles> role_bytes{};
  for (std::size_t role = 0; role < role_bytes.size(); ++role) {
    role_bytes[role] =
        bytes_per_row(plan.config, {.role = static_cast<Role>(role), .heads = all_heads}, false);
  }
  report.pair_bytes.assign(num_ranks * num_ranks, 0);
  report.remote_rows.assign(num_ranks, 0);
  const auto count = [&](std::int32_t from, std::int32_t to, std::int64_t rows, Role role) {
    const std::int64_t bytes = rows * role_bytes[static_cast<std::size_t>(role)];
    report.pair_bytes[static_cast<std::size_t>(from) * num_ranks + static_cast<std::size_t>(to)] +=
        bytes;
    report.total_bytes += bytes;
  };
  for (const Transfer& t : plan.transfers) {
    if (t.src == t.dst) continue;
    if (t.space == Space::Keys) {
      report.remote_rows[static_cast<std::size_t>(t.dst)] += t.num_rows;
      count(t.src, t.dst, t.num_rows, Role::KeysValues);
    } else {
      count(t.src, t.dst, t.num_rows, Role::Queries);
      count(t.dst, t.src, t.num_rows, Role::Results);
    }
  }
  const std::int64_t row_bytes = bytes_per_row(plan.config);
  report.ring_bytes = static_cast<std::int64_t>(num_ranks - 1) * plan.mask.rows_k * row_bytes;
}

void predict(const Plan& plan, const PlanLoads& loads, PlanReport& report) {
  const PlanTimes times = predict_plan(plan, loads);
  report.forward_seconds = static_cast<double>(times.forward_ns) * 1e-9;
  report.backward_seconds = static_cast<double>(times.backward_ns) * 1e-9;
  report.exposed_comm_seconds = static_cast<double>(times.forward_ns - times.busiest_ns) * 1e-9;
}

}  // namespace

PlanReport make_report(const Plan& plan) {
  PlanReport report;
  count_bytes(plan, report);
  const PlanLoads loads(plan);
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    report.rank_area.push_back(loads.rank_area(static_cast<std::int32_t>(r)));
    report.rank_rows.push_back(plan.ranks[r].q.segments[0].num_rows);
  }
  report.balance = max_over_mean(report.rank_area);
  const BoundLimits limits{
      .num_ranks = plan.config.num_ranks,
      .max_rows = *std::max_element(report.rank_rows.begin(), report.rank_rows.end()),
      .max_area = *std::max_element(report.rank_area.begin(), report.rank_area.end()),
      .is_shared = plan.placement_q == plan.placement_k};
  report.lower_bound_bytes = lower_bound_rows(plan.mask, limits) * bytes_per_row(plan.config);
  predict(plan, loads, report);
  return report;
}

}  // namespace magi::planner
