// SPDX-License-Identifier: Apache-2.0
#include "magi/plan.hpp"

#include <utility>

#include "plan/config.hpp"
#include "plan/cost.hpp"
#include "plan/layout.hpp"
#include "plan/needs.hpp"
#include "plan/place_keys.hpp"
#include "plan/report.hpp"
#include "plan/waves.hpp"
#include "plan/work.hpp"

namespace magi {
namespace {

bool is_sharing_placement(const Mask& mask, const PlanConfig& config) {
  return !config.placement_k && mask.rows_q == mask.rows_k;
}

/// Work for the degree asked for, or for the one that the cost model prefers.
std::pair<planner::WaveShape, planner::Work> build_best(const planner::Needs& needs,
                                                        const planner::Layout& layout_q,
                                                        const planner::Layout& layout_k,
                                                        const PlanConfig& config) {
  using namespace planner;
  WaveShape shape = shape_waves(config, config.overlap_degree.value_or(1), needs.remote_rows);
  Work work = build_work({needs, layout_q, layout_k, shape, config});
  if (!config.overlap_degree) {
    const std::int32_t degree = choose_degree(work, needs, config);
    shape = shape_waves(config, degree, needs.remote_rows);
    if (degree != 1) work = build_work({needs, layout_q, layout_k, shape, config});
  }
  return {shape, std::move(work)};
}

/// Everything after the placements, which must be in the plan.
void finish_plan(Plan& plan) {
  const bool is_shared = plan.placement_q == plan.placement_k;
  const planner::Layout layout_q = planner::make_layout(plan.placement_q);
  const planner::Layout layout_own_k =
      is_shared ? planner::Layout{} : planner::make_layout(plan.placement_k);
  const planner::Layout& layout_k = is_shared ? layout_q : layout_own_k;
  const planner::Needs needs = planner::find_needs(plan.mask, layout_q, layout_k);
  auto [shape, work] = build_best(needs, layout_q, layout_k, plan.config);
  plan.num_waves = shape.num_waves();
  plan.ranks = std::move(work.ranks);
  plan.transfers = std::move(work.transfers);
  plan.report = planner::make_report(plan, work, shape);
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
