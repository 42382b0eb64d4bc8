// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "magi/plan.hpp"
#include "plan/waves.hpp"
#include "plan/work.hpp"

namespace magi::planner {

/// Bytes of one key and value row, all kv heads.
std::int64_t bytes_per_row(const PlanConfig& config);

/// Predicted times in whole nanoseconds, so that comparing them is the same everywhere.
struct PredictedTime {
  std::int64_t forward_ns = 0;
  std::int64_t backward_ns = 0;
  std::int64_t exposed_ns = 0;  ///< forward beyond the busiest rank's computing
};

/// The slowest rank's timeline: transfers of all waves follow each other from time 0, each wave is
/// computed once it is there and the one before is done; the backward also sends each wave's
/// partial dK, dV back behind the next wave's work.
PredictedTime predict_time(const Work& work, std::size_t num_ranks, const WaveShape& shape,
                           const PlanConfig& config);

/// The degree of 1..8 with the least predicted forward time (the smallest such), from the loads of
/// a build with one remote wave, which more waves would share equally.
std::int32_t choose_degree(const Work& single, const Needs& needs, const PlanConfig& config);

}  // namespace magi::planner
