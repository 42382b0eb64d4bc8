// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "magi/plan.hpp"
#include "plan/cost/loads.hpp"

namespace magi::planner {

/// Builds the exchanges, ranks and transfers of a plan for an overlap degree.
using Build = std::function<void(std::int32_t)>;

/// Leaves a plan as `build` makes it for the degree of the least predicted time of both passes, of
/// equals 0, else the first. By heads the tables of one stage are built, and those of more made
/// from them. Returns what the steps move and compute. `num_shares`: of the heads, where the plan
/// is one of per-share rows.
PlanLoads build_fastest(Plan& plan, const Build& build, const std::vector<std::int32_t>& degrees,
                        std::int32_t num_shares = 1);

/// The same for the degree that plan.config asks for, where it does.
PlanLoads build_asked_for(Plan& plan, const Build& build,
                          const std::vector<std::int32_t>& otherwise, std::int32_t num_shares = 1);

}  // namespace magi::planner
