// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "magi/plan.hpp"
#include "plan/check_structure.hpp"

namespace magi::planner {

/// The report's counts of pairs, rows and bytes, its balance and its predicted times are those of
/// the tables.
void check_figures(const Plan& plan, Problems& problems);

}  // namespace magi::planner
