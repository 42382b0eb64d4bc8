// SPDX-License-Identifier: Apache-2.0
#include "plan/tables/steps.hpp"

#include <algorithm>

namespace magi {
namespace planner {
namespace {

bool overlaps(Range a, Range b) { return a.begin < b.end && b.begin < a.end; }

std::int32_t segment_of(const Attend& attend, Space space) {
  return space == Space::Keys ? attend.k_segment : attend.q_segment;
}

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

/// Lists the steps of one pass.
class PassBuilder {
 public:
  PassBuilder(const std::vector<Exchange>& exchanges, const std::vector<Attend>& attends)
      : exchanges_(exchanges), attends_(attends) {}

  std::vector<Step> build(bool is_backward) {
    for (std::size_t e = 0; e < exchanges_.size(); ++e) {
      if (!is_in_pass(exchanges_[e].role, is_backward)) continue;
      (is_returning(exchanges_[e].role) ? returning_ : outgoing_).push_back(e);
    }
    steps_.reserve(outgoing_.size() + attends_.size() + returning_.size());
    for (const std::size_t e : outgoing_) add(StepKind::Exchange, e, {-1, -1});
    add_returns(-1);
    for (std::size_t i = 0; i < attends_.size(); ++i) {
      last_attend_ =
          add(StepKind::Attend, i,
              {source_of(attends_[i], Space::Keys), source_of(attends_[i], Space::Queries)});
      add_returns(static_cast<std::int32_t>(i));
    }
    return std::move(steps_);
  }

 private:
  std::int32_t add(StepKind kind, std::size_t index, std::array<std::int32_t, 2> after) {
    if (after[0] < 0) std::swap(after[0], after[1]);
    steps_.push_back({kind, static_cast<std::int32_t>(index), after});
    return static_cast<std::int32_t>(steps_.size()) - 1;
  }

  /// The step that brings an attention call's rows of one space; -1: they are the rank's own.
  std::int32_t source_of(const Attend& attend, Space space) const {
    const std::int32_t segment = segment_of(attend, space);
    for (std::size_t i = 0; segment > 0 && i < outgoing_.size(); ++i) {
      const Exchange& exchange = exchanges_[outgoing_[i]];
      if (space_of(exchange.role) == space && exchange.segment == segment &&
          overlaps(exchange.heads, attend.heads)) {
        return static_cast<std::int32_t>(i);
      }
    }
    return -1;
  }

  /// Starts, in their order, the returning exchanges that wait for no attention call after `done`.
  void add_returns(std::int32_t done) {
    for (; next_return_ < returning_.size(); ++next_return_) {
      const std::size_t e = returning_[next_return_];
      if (last_writer(attends_, exchanges_[e]) > done) return;
      add(StepKind::Exchange, e, {last_attend_, -1});
    }
  }

  const std::vector<Exchange>& exchanges_;
  const std::vector<Attend>& attends_;
  std::vector<std::size_t> outgoing_;   ///< exchanges that bring rows
  std::vector<std::size_t> returning_;  ///< exchanges that take partial rows back
  std::vector<Step> steps_;
  std::size_t next_return_ = 0;
  std::int32_t last_attend_ = -1;  ///< its step
};

}  // namespace

void make_steps(const std::vector<Exchange>& exchanges, RankPlan& rank) {
  rank.forward = PassBuilder(exchanges, rank.attends).build(false);
  rank.backward = PassBuilder(exchanges, rank.attends).build(true);
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
