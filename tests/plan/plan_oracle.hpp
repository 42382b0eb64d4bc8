// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "magi/plan.hpp"

namespace magi::testing {

/// The first thing that is wrong with a plan, empty for a right one: judged row by row and pair by
/// pair from what plan.hpp says that the tables mean, with no code of the checker. Predicted times,
/// memory and the bound are those of make_report.
/// For plans of some hundred rows.
std::string judge_plan(const Plan& plan);

/// Writes counts of pairs, rows and bytes, balance, predicted times and digest anew, as the tables
/// have them. False where the tables point outside themselves.
bool renew_figures(Plan& plan);

}  // namespace magi::testing
