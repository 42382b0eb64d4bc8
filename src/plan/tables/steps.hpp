// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "magi/plan.hpp"

namespace magi::planner {

/// Fills the two passes of a rank whose segments and attends are in place. Both passes start the
/// exchanges of keys, values and queries first. Each attention call waits for those that bring its
/// rows; each exchange that returns partial rows waits for the last attention call on its segment
/// or on the owner's own rows, which the partial rows are added to.
void make_steps(const std::vector<Exchange>& exchanges, RankPlan& rank);

}  // namespace magi::planner
