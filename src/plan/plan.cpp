// SPDX-License-Identifier: Apache-2.0
#include "magi/plan.hpp"

#include "plan/config.hpp"
#include "plan/layout.hpp"
#include "plan/needs.hpp"
#include "plan/place_keys.hpp"
#include "plan/ranks.hpp"
#include "plan/report.hpp"
#include "plan/timeline.hpp"

namespace magi {
namespace {

bool is_sharing_placement(const Mask& mask, const PlanConfig& config) {
  return !config.placement_k && mask.rows_q == mask.rows_k;
}

/// Ranks and transfers for the degree asked for, or for the one that the cost model prefers.
void build_best(const planner::Needs& needs, const planner::Layout& layout_q,
                const planner::Layout& layout_k, Plan& plan) {
  const auto build = [&](std::int32_t degree) {
    const planner::StageShape shape = planner::shape_stages(plan.config, degree, needs.remote_rows);
    planner::build_ranks({needs, layout_q, layout_k, shape, plan.config}, plan);
  };
  build(plan.config.overlap_degree.value_or(1));
  if (plan.config.overlap_degree) return;
  const std::int32_t degree = planner::choose_degree(plan, needs);
  if (degree != 1) build(degree);
}

/// Everything after the placements, which must be in the plan.
void finish_plan(Plan& plan) {
  const bool is_shared = plan.placement_q == plan.placement_k;
  const planner::Layout layout_q = planner::make_layout(plan.placement_q);
  const planner::Layout layout_own_k =
      is_shared ? planner::Layout{} : planner::make_layout(plan.placement_k);
  const planner::Layout& layout_k = is_shared ? layout_q : layout_own_k;
  const planner::Needs needs = planner::find_needs(plan.mask, layout_q, layout_k);
  build_best(needs, layout_q, layout_k, plan);
  plan.report = planner::make_report(plan);
  plan.digest = plan_digest(plan);
}

}  // namespace

Plan make_plan(const Mask& mask, const PlanConfig& config) {
  planner::validate_config(config);
  planner::validate_sizes(mask, config);
  Plan plan{.mask = mask, .config = config};
  plan.placement_q = place(mask, config.num_ranks, config.placement);
  if (is_sharing_placement(mask, config)) {
    plan.placement_k = plan.placement_q;
  } else {
    plan.placement_k =
        planner::place_keys(mask, plan.placement_q, config.placement_k.value_or(config.placement));
  }
  finish_plan(plan);
  return plan;
}

Plan make_plan_on(const Mask& mask, const PlanConfig& config, const Placement& placement_q,
                  const Placement& placement_k) {
  planner::validate_config(config);
  planner::validate_sizes(mask, config);
  planner::validate_placement(placement_q, "placement_q", mask.rows_q, config.num_ranks);
  planner::validate_placement(placement_k, "placement_k", mask.rows_k, config.num_ranks);
  Plan plan{.mask = mask, .config = config, .placement_q = placement_q, .placement_k = placement_k};
  finish_plan(plan);
  return plan;
}

}  // namespace magi
