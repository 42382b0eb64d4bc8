// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "magi/plan.hpp"
#include "plan/cost/loads.hpp"
#include "plan/tables/layout.hpp"
#include "plan/travel/even.hpp"
#include "plan/travel/share.hpp"

namespace magi::planner {

/// Bytes over a forward and a backward of one query row and one key row that a rank does not own.
RowCosts row_costs(const PlanConfig& config);

/// The slices that each rank of the layouts computes, by the row costs of a config.
std::vector<WorkPiece> find_pieces(const Mask& mask, const Layout& layout_q, const Layout& layout_k,
                                   const PlanConfig& config);

/// Fills exchanges, ranks and transfers of a plan whose mask, config and placements are set:
/// queries travel as well as keys, whichever moves fewer bytes for even areas. Where the config
/// leaves the overlap degree open, that of the least predicted time of both passes is taken.
/// Returns what the steps move and compute.
PlanLoads plan_queries(const Layout& layout_q, const Layout& layout_k, Plan& plan);

}  // namespace magi::planner
