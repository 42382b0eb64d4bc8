// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/schedule/host/schedule_candidate.hpp"

// Chooses the schedule of a backward list: makes a schedule of each candidate
// (schedule_candidate.hpp), predicts its time (schedule_cost.hpp), and takes the one that ends
// first.
namespace magi {

/// Returns the schedule of the candidate that ends first. Throws InvalidArgument if a list of it
/// would have too many items.
Schedule choose_schedule(const TileCosts& tiles, const BackwardChoice& choice);

/// Predicts the time of a list with these k tiles, in steps, from few candidates. That is exact
/// enough to choose how keys are cut into k tiles and heads are packed.
std::int64_t predicted_time(const TileCosts& tiles, const BackwardChoice& choice);

}  // namespace magi
