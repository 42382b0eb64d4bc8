// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "magi/plan.hpp"
#include "plan/check/pairs.hpp"
#include "plan/check/steps.hpp"
#include "plan/check/structure.hpp"
#include "plan/cost/report.hpp"
#include "plan/value/config.hpp"
#include "plan/value/runs.hpp"

namespace magi {

using namespace planner;

namespace {

/// The sentences of one comparison of figures, those reported and those of the tables.
class FigureCheck {
 public:
  FigureCheck(const Plan& plan, Problems& problems)
      : reported_(plan.report), counted_(make_report(plan)), problems_(problems) {
    std::size_t num_steps = 0;
    for (const RankPlan& rank : plan.ranks) {
      num_steps = std::max({num_steps, rank.forward.size(), rank.backward.size()});
    }
    rounded_seconds_ = 2e-9 * static_cast<double>(num_steps + 1);
  }

  void of_ranks(std::vector<std::int64_t> PlanReport::*figure, const char* what,
                std::size_t per_rank = 1) {
    const auto [counted, reported] = std::ranges::mismatch(counted_.*figure, reported_.*figure);
    if (counted == (counted_.*figure).end()) return;
    const auto index = static_cast<std::size_t>(counted - (counted_.*figure).begin());
    problems_.add("rank ", index / per_rank, ": the report says ", *reported, " ", what,
                  ", the tables have ", *counted);
  }
  void of_all(std::int64_t PlanReport::*figure, const char* what) {
    if (reported_.*figure == counted_.*figure) return;
    problems_.add("the report counts ", reported_.*figure, " ", what, ", the tables ",
                  counted_.*figure);
  }
  void seconds(double PlanReport::*figure, const char* what) {
    near(reported_.*figure, counted_.*figure, rounded_seconds_, what);
  }
  void balance() {
    constexpr double kRounding = 1e-12;  // of two products and a quotient
    near(reported_.balance, counted_.balance, kRounding * counted_.balance, "has a balance");
  }

 private:
  void near(double reported, double counted, double most, const char* what) {
    if (std::abs(reported - counted) <= most) return;
    problems_.add("the report ", what, " of ", reported, ", the tables ", counted);
  }

  const PlanReport& reported_;
  PlanReport counted_;
  Problems& problems_;
  /// Processors may round the whole nanoseconds of a step the other way.
  double rounded_seconds_ = 0.0;
};

void check_figures(const Plan& plan, Problems& problems) {
  FigureCheck check(plan, problems);
  check.of_ranks(&PlanReport::rank_area, "pairs");
  check.of_ranks(&PlanReport::rank_rows, "own query rows");
  check.of_ranks(&PlanReport::remote_rows, "received key rows");
  if (!plan.report.rank_runs.empty()) {
    check.of_ranks(&PlanReport::rank_runs, "runs after rows of other ranks");
  }
  const std::int64_t most_runs = std::ranges::max(count_runs(plan.mask, plan.placement_q));
  if (plan.config.max_runs && most_runs > *plan.config.max_runs) {
    problems.add("a rank has ", most_runs, " runs after rows of other ranks, max_runs is ",
                 *plan.config.max_runs);
  }
  check.of_ranks(&PlanReport::rank_memory, "bytes of memory");
  check.of_ranks(&PlanReport::pair_bytes, "bytes sent to another", plan.ranks.size());
  const std::int64_t bytes = *std::ranges::max_element(plan.report.rank_memory);
  if (planner::is_above_bound(plan.config, bytes)) {
    problems.add("a rank needs ", bytes, " bytes of memory, the config allows ",
                 *plan.config.max_exchange_bytes);
  }
  check.of_all(&PlanReport::total_bytes, "bytes");
  check.of_all(&PlanReport::lower_bound_bytes, "bytes as the lower bound");
  check.of_all(&PlanReport::ring_bytes, "bytes of a ring");
  check.balance();
  check.seconds(&PlanReport::forward_seconds, "predicts a forward");
  check.seconds(&PlanReport::backward_seconds, "predicts a backward");
  check.seconds(&PlanReport::exposed_comm_seconds, "predicts exposed communication");
}

/// `rows`: the plan, as one of per-share rows where it shares out heads.
void check_tables(const Plan& rows, Problems& problems) {
  for (std::size_t r = 0; r < rows.ranks.size(); ++r) check_attend_slices(rows, r, problems);
  const RowMaps maps(rows);
  check_received(rows, maps, problems);
  check_pairs(rows, maps, problems);
}

}  // namespace

std::vector<std::string> check_plan(const Plan& plan) {
  std::vector<std::string> broken = check_structure(plan);
  if (!broken.empty()) return broken;
  Problems problems;
  check_tables(plan.num_head_shares == 1 ? plan : flat_plan(plan), problems);
  // Figures are counted from tables that are sound: a broken one has none to compare.
  if (problems.empty()) check_figures(plan, problems);
  if (plan_digest(plan) != plan.digest) problems.add("the digest is not that of the tables");
  return problems.take();
}

}  // namespace magi
