// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "magi/plan.hpp"
#include "plan/check_structure.hpp"

namespace magi::planner {

/// The report's counts of pairs, rows and bytes, and its balance, are those of the tables.
/// Predicted times depend on the processor in their last bits and are not compared.
void check_figures(const Plan& plan, Problems& problems);

}  // namespace magi::planner
