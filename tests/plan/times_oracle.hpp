// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "magi/plan.hpp"

namespace magi::testing {

/// One row that a rank sends another to fill a segment.
struct SentRow {
  Space space = Space::Keys;
  std::int32_t segment = 0;
  std::int32_t owner = 0;
  std::int32_t from = 0;
  std::int32_t to = 0;
};

/// Seconds of a plan's steps, slowest rank, and how far others may be off that round elsewhere.
struct OracleTimes {
  double forward = 0.0;
  double backward = 0.0;
  double exposed = 0.0;
  double tolerance = 0.0;
};

/// Whether all results and gradients of a space's rows are made by one attend that does not merge,
/// of a rank that does not own them, in a plan with head shares whose rows go straight.
bool returns_whole(const Plan& plan, Space space);

/// The times that the cost model gives the steps, from what cost.hpp, plan.hpp and timeline.hpp say
/// that they mean, row by row. Throws std::out_of_range where tables point outside themselves.
OracleTimes times_of(const Plan& plan, const std::vector<SentRow>& sent);

}  // namespace magi::testing
