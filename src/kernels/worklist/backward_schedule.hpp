// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/worklist/schedule_candidate.hpp"

// The choice of a backward list's schedule: candidates are made into schedules
// (schedule_candidate.hpp), these are priced (schedule_cost.hpp), and the one that is done first is
// taken.
namespace magi {

Walk choose_walk(const TileCosts& tiles, const BackwardChoice& choice);

/// The schedule that is done first, of all candidates. Throws InvalidArgument if a list of it would
/// have too many items.
Schedule choose_schedule(const TileCosts& tiles, const Walk& walk, const BackwardChoice& choice);

/// When a list with these k tiles would be done, in steps, of few candidates: exact enough to
/// choose how k tiles are cut and heads are packed.
std::int64_t predicted_time(const TileCosts& tiles, const BackwardChoice& choice);

}  // namespace magi
