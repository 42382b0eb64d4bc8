// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "magi/plan.hpp"
#include "plan/tables/layout.hpp"
#include "plan/tables/needs.hpp"
#include "plan/tables/stages.hpp"

namespace magi::planner {

struct RankInputs {
  const Needs& needs;
  const Layout& layout_q;
  const Layout& layout_k;
  const StageShape& shape;
  const PlanConfig& config;
};

/// Fills exchanges, ranks and transfers of a plan.
void build_ranks(const RankInputs& inputs, Plan& plan);

}  // namespace magi::planner
