// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "magi/plan.hpp"
#include "plan/check_hops.hpp"
#include "plan/check_returns.hpp"
#include "plan/check_structure.hpp"

namespace magi::planner {

/// The report's predicted times are those of the steps under the config's cost model. Each duration
/// is a whole number of nanoseconds, so that processors may differ by some for each step.
void check_times(const Plan& plan, const std::vector<SentRows>& sent, const ReturnsOnce& once,
                 Problems& problems);

}  // namespace magi::planner
