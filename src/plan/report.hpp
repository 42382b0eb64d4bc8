// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "magi/plan.hpp"
#include "plan/cost.hpp"
#include "plan/needs.hpp"
#include "plan/work.hpp"

namespace magi::planner {

/// The figures of a plan whose work and transfers are in place.
PlanReport make_report(const Plan& plan, const Work& loads, const WaveShape& shape);

}  // namespace magi::planner
