// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "magi/plan.hpp"
#include "plan/cost/loads.hpp"

namespace magi::planner {

/// A plan with what its steps move and compute, which planning has counted.
struct PlanWithLoads {
  Plan plan;
  PlanLoads loads;
};

/// Does what make_plan does.
PlanWithLoads make_plan_with_loads(const Mask& mask, const PlanConfig& config);

/// The figures of a plan whose tables are in place.
PlanReport make_report(const Plan& plan, const PlanLoads& loads);
PlanReport make_report(const Plan& plan);
/// The largest PlanReport::rank_memory that the report of such tables has.
std::int64_t exchange_memory(const Plan& plan, const PlanLoads& loads);

}  // namespace magi::planner
