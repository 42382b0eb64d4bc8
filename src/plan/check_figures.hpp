// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "magi/plan.hpp"
#include "plan/check_structure.hpp"

namespace magi::planner {

/// The report's counts of pairs, rows and bytes, its balance and its predicted times are those of
/// the tables. `num_shares`: of the heads, where the plan is one of flat rows.
void check_figures(const Plan& plan, std::int32_t num_shares, Problems& problems);

}  // namespace magi::planner
