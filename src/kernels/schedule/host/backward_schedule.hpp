// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/schedule/host/schedule_candidate.hpp"

// The choice of a backward list's schedule: candidates are made into schedules
// (schedule_candidate.hpp), these are priced (schedule_cost.hpp), and the one that is done first is
// taken.
namespace magi {

/// Returns the schedule of the candidate that is done first. Throws InvalidArgument if a list of it
/// would have too many items.
Schedule choose_schedule(const TileCosts& tiles, const BackwardChoice& choice);

/// Predicts when a list with these k tiles is done, in steps, from few candidates. That is exact
/// enough to choose how keys are cut into k tiles and heads are packed.
std::int64_t predicted_time(const TileCosts& tiles, const BackwardChoice& choice);

}  // namespace magi
