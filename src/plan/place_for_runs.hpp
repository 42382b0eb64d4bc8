// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "magi/plan.hpp"

namespace magi::planner {

/// Placements to choose from where runs count (asks_for_runs), those that keep the bound: that of
/// the config and, if it searches, contiguous rows, the zigzag, the same over larger chunks of two
/// or more of its chunks, and each of these after place_for_step. All have the same chunks. Throws
/// InvalidArgument if none keeps it.
std::vector<Placement> placements_for_runs(const Mask& mask, const PlanConfig& config);

/// Returns those that keep the bound; throws InvalidArgument if none does.
std::vector<Placement> require_few_runs(const Mask& mask, const PlanConfig& config,
                                        std::vector<Placement> placements);

}  // namespace magi::planner
