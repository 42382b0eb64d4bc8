// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "magi/plan.hpp"

namespace magi::planner {

/// Fills the two passes of a rank whose segments and attends are in place: exchanges in their
/// order, each as soon as the attention calls before it allow. Each attention call waits for those
/// that bring its rows; each exchange that returns partial rows waits for the last attention call
/// on its segment or on the owner's own rows, which the partial rows are added to. Where stages
/// take turns (Plan::stages_in_flight), each step also waits for what uses the memory before it.
void make_steps(const std::vector<Exchange>& exchanges, RankPlan& rank,
                std::int32_t stages_in_flight = 0);

}  // namespace magi::planner
