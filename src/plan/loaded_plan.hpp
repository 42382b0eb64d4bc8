// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "magi/plan.hpp"
#include "plan/loads.hpp"

namespace magi::planner {

/// A plan with what its steps move and compute, which planning has counted.
struct LoadedPlan {
  Plan plan;
  PlanLoads loads;
};

/// As make_plan.
LoadedPlan make_loaded_plan(const Mask& mask, const PlanConfig& config);

}  // namespace magi::planner
