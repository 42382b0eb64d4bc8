// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "magi/plan.hpp"
#include "plan/cost/loads.hpp"
#include "plan/tables/stages.hpp"

namespace magi::planner {

/// One stage travels while another is computed. With as many stages, each has memory of its own.
inline constexpr std::int32_t kStagesInFlight = 2;

/// Builds the exchanges, ranks and transfers of a plan whose keys travel in such stages.
using BuildStages = std::function<void(const StageShape&)>;

/// Leaves a plan of stages that take turns in memory, two of them in flight: of those that keep the
/// bound the one of the least predicted time of both passes, else the one that needs least memory.
/// Leaves a plan as it is where no number of stages that its config allows needs less.
/// `remote_rows`: key rows that each rank lacks. Returns what the steps move and compute.
PlanLoads build_bounded(Plan& plan, PlanLoads loads, const BuildStages& build,
                        const std::vector<std::int32_t>& remote_rows);

}  // namespace magi::planner
