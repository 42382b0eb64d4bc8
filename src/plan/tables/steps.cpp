// SPDX-License-Identifier: Apache-2.0
#include "plan/tables/steps.hpp"

#include <algorithm>

#include "plan/value/spaces.hpp"

namespace magi {
namespace planner {
namespace {

/// The last attention call that writes rows which `exchange` sends or adds to; -1: there is none.
std::int32_t last_writer(const std::vector<Attend>& attends, const Exchange& exchange) {
  for (std::size_t i = attends.size(); i-- > 0;) {
    const std::int32_t segment = segment_of(attends[i], space_of(exchange.role));
    const bool is_written = segment == 0 || segment == exchange.segment;
    if (is_written && overlaps(attends[i].heads, exchange.heads)) {
      return static_cast<std::int32_t>(i);
    }
  }
  return -1;
}

bool is_in_pass(Role role, bool is_backward) {
  if (!is_returning(role)) return true;
  return (role != Role::Results) == is_backward;
}

/// Lists the steps of one pass: each exchange as soon as the attention calls before it allow.
class PassBuilder {
 public:
  PassBuilder(const std::vector<Exchange>& exchanges, const std::vector<Attend>& attends,
              std::int32_t stages_in_flight)
      : exchanges_(exchanges),
        attends_(attends),
        stages_in_flight_(stages_in_flight),
        step_of_(exchanges.size(), -1) {
    for (const Attend& attend : attends) key_sources_.push_back(source_of(attend, Space::Keys));
  }

  std::vector<Step> build(bool is_backward) {
    steps_.reserve(exchanges_.size() + attends_.size());
    for (std::size_t e = 0; e < exchanges_.size(); ++e) {
      const Exchange& exchange = exchanges_[e];
      if (!is_in_pass(exchange.role, is_backward)) continue;
      const std::int32_t previous = previous_turn(exchange.role, exchange.stage, e);
      std::array<std::int32_t, 2> after{-1, -1};
      if (is_returning(exchange.role)) {
        place_attends(last_writer(attends_, exchange));
        after = {last_attend(), previous < 0 ? -1 : step_at(previous)};
      } else if (previous >= 0) {
        after[0] = last_use(previous);
      }
      step_of_[e] = add(StepKind::Exchange, e, after);
    }
    place_attends(static_cast<std::int32_t>(attends_.size()) - 1);
    return std::move(steps_);
  }

 private:
  std::int32_t add(StepKind kind, std::size_t index, std::array<std::int32_t, 2> after) {
    if (after[0] < 0) std::swap(after[0], after[1]);
    steps_.push_back({kind, static_cast<std::int32_t>(index), after});
    return static_cast<std::int32_t>(steps_.size()) - 1;
  }
  std::int32_t step_at(std::int32_t exchange) const {
    return step_of_[static_cast<std::size_t>(exchange)];
  }
  std::int32_t last_attend() const { return attend_steps_.empty() ? -1 : attend_steps_.back(); }

  /// Lists the attention calls up to this one.
  void place_attends(std::int32_t last) {
    for (std::size_t i = attend_steps_.size(); static_cast<std::int32_t>(i) <= last; ++i) {
      const Attend& attend = attends_[i];
      const std::int32_t keys = key_sources_[i];
      const std::int32_t queries = source_of(attend, Space::Queries);
      std::array<std::int32_t, 2> after{keys < 0 ? -1 : step_at(keys),
                                        queries < 0 ? -1 : step_at(queries)};
      if (keys >= 0 && stages_in_flight_ > 0) {
        // Partial gradients go where those of an earlier stage were; a forward has none.
        const auto source = static_cast<std::size_t>(keys);
        const std::int32_t previous =
            previous_turn(Role::KeyGradients, exchanges_[source].stage, source + 1);
        if (previous >= 0) after[1] = step_at(previous);
      }
      attend_steps_.push_back(add(StepKind::Attend, i, after));
    }
  }

  /// The exchange that brings an attention call's rows of one space; -1: they are the rank's own.
  std::int32_t source_of(const Attend& attend, Space space) const {
    const std::int32_t segment = segment_of(attend, space);
    for (std::size_t e = 0; segment > 0 && e < exchanges_.size(); ++e) {
      const Exchange& exchange = exchanges_[e];
      if (!is_returning(exchange.role) && space_of(exchange.role) == space &&
          exchange.segment == segment && overlaps(exchange.heads, attend.heads)) {
        return static_cast<std::int32_t>(e);
      }
    }
    return -1;
  }

  /// The exchange of this role, up to place `last` of the list, whose memory one of `stage` takes;
  /// -1: there is none.
  std::int32_t previous_turn(Role role, std::int32_t stage, std::size_t last) const {
    if (stages_in_flight_ == 0) return -1;
    for (std::size_t e = std::min(last + 1, exchanges_.size()); e-- > 0;) {
      const Exchange& exchange = exchanges_[e];
      if (exchange.role == role && exchange.stage == stage - stages_in_flight_) {
        return static_cast<std::int32_t>(e);
      }
    }
    return -1;
  }

  /// The step of the last attention call that reads what an exchange brings, or of the exchange.
  std::int32_t last_use(std::int32_t exchange) {
    for (std::size_t i = attends_.size(); i-- > 0;) {
      if (key_sources_[i] != exchange) continue;
      place_attends(static_cast<std::int32_t>(i));
      return attend_steps_[i];
    }
    return step_at(exchange);
  }

  const std::vector<Exchange>& exchanges_;
  const std::vector<Attend>& attends_;
  std::int32_t stages_in_flight_;
  std::vector<std::int32_t> key_sources_;   ///< by attention call, see source_of
  std::vector<std::int32_t> step_of_;       ///< by exchange
  std::vector<std::int32_t> attend_steps_;  ///< of the attention calls listed so far
  std::vector<Step> steps_;
};

}  // namespace

void make_steps(const std::vector<Exchange>& exchanges, RankPlan& rank,
                std::int32_t stages_in_flight) {
  rank.forward = PassBuilder(exchanges, rank.attends, stages_in_flight).build(false);
  rank.backward = PassBuilder(exchanges, rank.attends, stages_in_flight).build(true);
}

}  // namespace planner

std::int32_t num_stages(const Plan& plan) {
  std::int32_t last = 0;
  for (const Exchange& exchange : plan.exchanges) last = std::max(last, exchange.stage);
  return last + 1;
}

std::int32_t stage_of(const Plan& plan, std::span<const Step> steps, const Step& step) {
  if (step.kind == StepKind::Exchange) {
    return plan.exchanges[static_cast<std::size_t>(step.index)].stage;
  }
  std::int32_t stage = 0;
  for (const std::int32_t before : step.after) {
    if (before < 0) continue;
    const Step& awaited = steps[static_cast<std::size_t>(before)];
    if (awaited.kind == StepKind::Attend) continue;
    stage = std::max(stage, plan.exchanges[static_cast<std::size_t>(awaited.index)].stage);
  }
  return stage;
}

}  // namespace magi
