// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "magi/plan.hpp"
#include "plan/cost/sum_bytes.hpp"

namespace magi::planner {

/// One pass of one rank in time, from its start. Time is std::int64_t for whole nanoseconds or
/// double for seconds.
template <typename Time>
struct WalkedPass {
  struct Span {
    Time begin{}, end{};
  };
  std::vector<Span> steps;     ///< as in RankPlan::forward or backward
  std::array<Time, 2> line{};  ///< by StepKind: when the last such step ends
  Time attending{};            ///< sum over the attention calls

  Time end() const { return std::max(line[0], line[1]); }
};

/// Walks the steps of one pass of one rank: its exchanges follow one another on one line, its
/// attends on another, and each begins once the steps that it waits for have ended. duration(step)
/// tells how long a step takes, and hidden(i, duration) how much of step i may pass while what it
/// waits for is under way.
template <typename Time, typename Duration, typename Hidden>
void walk(std::span<const Step> steps, Duration&& duration, Hidden&& hidden,
          WalkedPass<Time>& pass) {
  pass.steps.clear();
  pass.line = {};
  pass.attending = {};
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    Time& free = pass.line[static_cast<std::size_t>(step.kind)];
    const Time took = duration(step);
    Time awaited{};
    for (const std::int32_t before : step.after) {
      if (before < 0) continue;
      awaited = std::max(awaited, pass.steps[static_cast<std::size_t>(before)].end);
    }
    const Time begin = std::max(free, awaited - hidden(i, took));
    if (step.kind == StepKind::Attend) pass.attending += took;
    free = begin + took;
    pass.steps.push_back({begin, free});
  }
}

/// Whether attends take keys as they come and write gradients at their owners: where no rank has
/// more than one. Between nodes nothing tells what has come.
inline bool takes_keys_as_they_come(const Plan& plan) {
  return is_single_attend(plan) && !has_nodes(plan.config);
}

/// The rest of such an attention call once the last keys have come, of which those of other
/// ranks take `coming`: they arrive in two parts, one after the other, and the first is attended to
/// while the second is under way.
template <typename Time>
Time left_behind_last_keys(Time coming) {
  return coming / 2;
}

/// The share of such an attention call that passes beside the gradients that it sends: they leave
/// it from its middle on, on average.
template <typename Time>
Time beside_returning_gradients(Time attend) {
  return attend / 2;
}

/// The share of step i of such a plan may pass while what it waits for is under way. An attention
/// call of a forward begins before its keys have come. `took`: by step i; `coming`: by what the
/// attention call computes with keys of other ranks.
template <typename Time>
Time hidden_by_arrival(std::span<const Step> steps, std::size_t i, const WalkedPass<Time>& pass,
                       bool is_backward, Time took, Time coming) {
  const Step& step = steps[i];
  if (step.kind == StepKind::Attend) {
    return is_backward ? Time{} : took - left_behind_last_keys(coming);
  }
  if (step.after[0] < 0) return Time{};
  const auto before = static_cast<std::size_t>(step.after[0]);
  if (steps[before].kind != StepKind::Attend) return Time{};
  const Time attend = pass.steps[before].end - pass.steps[before].begin;
  return std::min(beside_returning_gradients(attend), took);
}

/// The slices of a rank's one attention call with keys that other ranks own; its segment begins
/// with own ones.
inline std::vector<BandSlice> in_flight_slices(const RankPlan& rank) {
  std::vector<BandSlice> coming;
  if (rank.attends.empty()) return coming;
  const std::int32_t own_rows = rank.k.segments.front().num_rows;
  const Range slices = rank.attends.front().slices;
  for (std::int32_t s = slices.begin; s < slices.end; ++s) {
    const BandSlice& slice = rank.slices[static_cast<std::size_t>(s)];
    if (slice.k1 <= own_rows) continue;
    const BandSlice cut = cut_k(slice, {own_rows, slice.k1});
    if (cut.k0 < cut.k1) coming.push_back(cut);
  }
  return coming;
}

}  // namespace magi::planner
