// SPDX-License-Identifier: Apache-2.0
#pragma once

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

}  // namespace magi::planner
