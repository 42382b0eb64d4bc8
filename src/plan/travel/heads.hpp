// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "magi/plan.hpp"
#include "plan/cost/loads.hpp"
#include "plan/tables/layout.hpp"

namespace magi::planner {

/// Fills the tables of a plan whose mask, config and placements are set and whose heads are in
/// `num_shares` shares. Neighbouring ranks form groups of `num_shares`, and each rank of a group
/// computes its share for the same pairs: all of them where there is one group, else what moving
/// queries and keys between groups costs least. A rank copies the rows of its share that it owns
/// beside those that come, so that one attention call reads all of a stage. Returns what the steps
/// move and compute.
PlanLoads plan_heads(std::int32_t num_shares, Plan& plan);

}  // namespace magi::planner
