// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "magi/plan.hpp"
#include "plan/cost/loads.hpp"

namespace magi::planner {

/// The time when a step begins and ends, in whole nanoseconds from the start of its pass, so that
/// comparing times is the same everywhere.
struct StepTime {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

/// The steps of one rank's pass in time.
struct PassTimes {
  std::vector<StepTime> steps;      ///< as in RankPlan::forward or backward
  std::int64_t end_ns = 0;          ///< of the last step
  std::int64_t attends_end_ns = 0;  ///< of the last attention call
  std::int64_t returns_end_ns = 0;  ///< of the last exchange that returns; 0: there is none
  std::int64_t attending_ns = 0;    ///< sum over the attention calls
};

/// The steps of every rank under plan.config.cost, by which plans are chosen; a simulation walks
/// them by the same rules (step_walk.hpp) and knows more of what a step takes. A rank's exchanges
/// follow one another on one line (each takes the larger of what the rank sends and receives, at
/// bytes_per_second, and seconds_per_transfer per peer; between nodes at the network's rates beside
/// that, and what is handed on in the node after both), its attention calls on another (at the
/// flop rate of the pass, and seconds_per_launch); each begins once the steps that it waits for
/// have ended, or before where keys are attended to as they come. Where some rank attends more than
/// once, steps also take what their sums read and write (sum_bytes, at memory_bytes_per_second) and
/// some launches, and parts travel as wide as they are summed. Ranks are predicted apart from each
/// other.
std::vector<PassTimes> predict_times(const Plan& plan, const PlanLoads& loads, bool is_backward);

/// Both passes of the slowest rank, with the copies of its tensors in per-share rows.
struct PlanTimes {
  std::int64_t forward_ns = 0;  ///< up to the last attention call or the last result that came back
  std::int64_t backward_ns = 0;
  std::int64_t busiest_ns = 0;  ///< attends of a forward of the rank that attends longest
};
PlanTimes predict_plan(const Plan& plan, const PlanLoads& loads);
/// The share of those copies in it; 0 for a plan of one share of the heads.
std::int64_t flat_copies_ns(const Plan& plan, bool is_backward);

/// Whether attention calls of a rank leave a few multiprocessors to exchanges that run beside them.
/// In a plan of stages that take turns these run between the calls instead where, one after the
/// other, they take less of a pass than the calls would lose.
bool is_worth_multiprocessors(const Plan& plan, const RankPlan& rank, bool is_backward);

/// A forward and a backward of a rank that takes keys as they come to its one attention call, in a
/// plan of one node that moves keys alone: what predict_times gives it but for roundings. Own keys
/// count as remote ones in the forward.
class GatheredStep {
 public:
  explicit GatheredStep(const PlanConfig& config);
  /// The time of `area` pairs, where it sends and receives `rows` rows at most, with all other
  /// ranks.
  double ns(std::int64_t area, std::int64_t rows) const;

 private:
  double forward_pair_ns_;
  double backward_pair_ns_;
  double row_ns_;        ///< of a key row on its way
  double returning_ns_;  ///< of its gradients
  double latency_ns_;    ///< of an exchange
  double launch_ns_;
};

/// The degree of 0..8 with the least predicted forward time (the smallest such), from a plan of
/// degree 0 or 1, whose remote rows more stages would share equally. Beside the steps' times it
/// counts what gathering copies and what merging reads and writes.
std::int32_t choose_degree(const Plan& plan, const PlanLoads& loads);

}  // namespace magi::planner
