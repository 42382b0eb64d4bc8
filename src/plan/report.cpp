// SPDX-License-Identifier: Apache-2.0
#include "plan/report.hpp"

#include <algorithm>

#include "plan/bound.hpp"

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
  const std::int64_t row_bytes = bytes_per_row(plan.config);
  report.pair_bytes.assign(num_ranks * num_ranks, 0);
  report.remote_rows.assign(num_ranks, 0);
  for (const Transfer& transfer : plan.transfers) {
    const auto dst = static_cast<std::size_t>(transfer.dst);
    const std::int64_t bytes = transfer.num_rows * row_bytes;
    report.pair_bytes[static_cast<std::size_t>(transfer.src) * num_ranks + dst] += bytes;
    report.remote_rows[dst] += transfer.num_rows;
    report.total_bytes += bytes;
  }
  report.ring_bytes = static_cast<std::int64_t>(num_ranks - 1) * plan.mask.rows_k * row_bytes;
}

}  // namespace

PlanReport make_report(const Plan& plan, const Work& work, const WaveShape& shape) {
  PlanReport report;
  count_bytes(plan, report);
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    std::int64_t pairs = 0;
    for (std::int32_t s = 0; s < work.num_segments; ++s) {
      pairs += work.load(static_cast<std::int32_t>(r), s).area;
    }
    report.rank_area.push_back(pairs);
    report.rank_rows.push_back(plan.ranks[r].q.segments[0].num_rows);
  }
  report.balance = max_over_mean(report.rank_area);
  const BoundLimits limits{
      .num_ranks = plan.config.num_ranks,
      .max_rows = *std::max_element(report.rank_rows.begin(), report.rank_rows.end()),
      .max_area = *std::max_element(report.rank_area.begin(), report.rank_area.end()),
      .is_shared = plan.placement_q == plan.placement_k};
  report.lower_bound_bytes = lower_bound_rows(plan.mask, limits) * bytes_per_row(plan.config);
  const PredictedTime time = predict_time(work, plan.ranks.size(), shape, plan.config);
  report.forward_seconds = static_cast<double>(time.forward_ns) * 1e-9;
  report.backward_seconds = static_cast<double>(time.backward_ns) * 1e-9;
  report.exposed_comm_seconds = static_cast<double>(time.exposed_ns) * 1e-9;
  return report;
}

}  // namespace magi::planner
