// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "magi/plan.hpp"

namespace magi::draw {

/// A stretch of one rank's forward call, in seconds from its start.
struct Bar {
  std::int32_t wave = 0;
  double begin = 0.0;
  double end = 0.0;
  std::int64_t amount = 0;  ///< bytes received, or (query, key) pairs times query heads
};

struct RankSchedule {
  std::vector<Bar> transfers;  ///< waves that bring or send rows, in order
  std::vector<Bar> attention;  ///< waves with work, in order
};

/// The forward call of every rank under plan.config.cost, as the planner predicts it: a rank moves
/// one wave after the other (the larger of what it sends and receives, at bytes_per_second plus
/// seconds_per_transfer per peer) and attends one wave after the other (at flops_per_second plus
/// seconds_per_launch), each as soon as its rows are there.
std::vector<RankSchedule> forward_schedule(const Plan& plan);

}  // namespace magi::draw
