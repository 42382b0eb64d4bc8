// SPDX-License-Identifier: Apache-2.0
#include "plan/check_times.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace magi::planner {
namespace {

/// Links that carry rows: in the node, between nodes beside that, and on in the node behind both.
enum Link : std::size_t { kInside, kNetwork, kOnward, kNumLinks };

/// What a rank moves to fill a segment over one kind of links: [in, out].
struct Moved {
  std::array<std::int64_t, 2> rows{};
  std::array<std::int64_t, 2> peers{};
};
using MovedByLink = std::array<Moved, kNumLinks>;

class MovedRowsOfRanks {
 public:
  MovedRowsOfRanks(const Plan& plan, const std::vector<SentRows>& sent)
      : num_ranks_(plan.ranks.size()),
        num_segments_(std::max(plan.ranks[0].k.segments.size(), plan.ranks[0].q.segments.size())),
        node_(plan.config.devices_per_node > 0 ? plan.config.devices_per_node
                                               : plan.config.num_ranks),
        moved_(num_ranks_ * 2 * num_segments_) {
    // Rows of one segment between two ranks stand together among all that the two exchange.
    std::vector<std::int32_t> last(2 * num_ranks_ * num_ranks_, -1);
    for (const SentRows& rows : sent) {
      const Link link = rows.is_onward                         ? kOnward
                        : rows.from / node_ == rows.to / node_ ? kInside
                                                               : kNetwork;
      Moved& in = moved_[index(rows.to, rows.space, rows.segment)][link];
      Moved& out = moved_[index(rows.from, rows.space, rows.segment)][link];
      in.rows[0] += rows.num_rows;
      out.rows[1] += rows.num_rows;
      const std::size_t pair =
          static_cast<std::size_t>(rows.from) * num_ranks_ + static_cast<std::size_t>(rows.to);
      std::int32_t& before = last[2 * pair + (rows.is_onward ? 1 : 0)];
      const auto filled = static_cast<std::int32_t>(index(0, rows.space, rows.segment));
      if (before == filled) continue;
      before = filled;
      ++in.peers[0];
      ++out.peers[1];
    }
  }

  const MovedByLink& of(std::int32_t rank, const Exchange& exchange) const {
    return moved_[index(rank, magi::space_of(exchange.role), exchange.segment)];
  }

 private:
  std::size_t index(std::int32_t rank, Space space, std::int32_t segment) const {
    return (static_cast<std::size_t>(rank) * 2 + static_cast<std::size_t>(space)) * num_segments_ +
           static_cast<std::size_t>(segment);
  }

  std::size_t num_ranks_;
  std::size_t num_segments_;
  std::int32_t node_;
  std::vector<MovedByLink> moved_;  ///< [num_ranks, 2, num_segments]
};

constexpr double kMostNs = 0x1p50;

double whole_ns(double seconds) { return std::round(std::min(seconds * 1e9, kMostNs)); }

/// Bytes of a row for one kv head. Queries have a group of heads for each.
double row_bytes(const PlanConfig& config, Role role, bool is_backward) {
  const double qk = config.head_dim_qk;
  const double v = config.head_dim_v;
  const std::int32_t group = config.num_heads_q / config.num_heads_kv;
  switch (role) {
    case Role::KeysValues:
    case Role::KeyGradients:
      return (qk + v) * config.element_bytes;
    case Role::Queries:  // back with out and its gradient
      return group * (is_backward ? qk + 2 * v : qk) * config.element_bytes;
    case Role::Results:
      return group * v * config.element_bytes;
    case Role::QueryGradients:
      return group * qk * config.element_bytes;
  }
  return 0.0;
}

/// One pass of one rank, in nanoseconds.
struct PassEnds {
  double all = 0.0;
  double attends = 0.0;
  double returns = 0.0;
  double attending = 0.0;  ///< the sum over attends
};

class TimeCheck {
 public:
  TimeCheck(const Plan& plan, const std::vector<SentRows>& sent)
      : plan_(plan), config_(plan.config), moved_(plan, sent) {}

  PassEnds pass_of(std::size_t rank, bool is_backward) const {
    const RankPlan& own = plan_.ranks[rank];
    const std::vector<Step>& steps = is_backward ? own.backward : own.forward;
    std::vector<double> ends;
    ends.reserve(steps.size());
    PassEnds pass;
    double exchanges = 0.0;
    for (const Step& step : steps) {
      const bool is_attend = step.kind == StepKind::Attend;
      double begin = is_attend ? pass.attends : exchanges;
      for (const std::int32_t before : step.after) {
        if (before >= 0) begin = std::max(begin, ends[static_cast<std::size_t>(before)]);
      }
      const auto index = static_cast<std::size_t>(step.index);
      if (is_attend) {
        const double took = attend_ns(own, own.attends[index], is_backward);
        pass.attending += took;
        ends.push_back(pass.attends = begin + took);
      } else {
        const Exchange& exchange = plan_.exchanges[index];
        const auto number = static_cast<std::int32_t>(rank);
        ends.push_back(exchanges = begin + exchange_ns(number, exchange, is_backward));
        if (is_returning(exchange.role)) pass.returns = std::max(pass.returns, exchanges);
      }
    }
    pass.all = std::max(exchanges, pass.attends);
    return pass;
  }

 private:
  double attend_ns(const RankPlan& own, const Attend& attend, bool is_backward) const {
    std::uint64_t pairs = 0;
    for (std::int32_t s = attend.slices.begin; s < attend.slices.end; ++s) {
      pairs += static_cast<std::uint64_t>(area(own.slices[static_cast<std::size_t>(s)]));
    }
    if (pairs == 0) return 0.0;
    const double heads =
        static_cast<double>(config_.num_heads_q) * attend.heads.size() / config_.num_heads_kv;
    const double qk = config_.head_dim_qk;
    const double v = config_.head_dim_v;
    const double flops =
        2.0 * static_cast<double>(pairs) * heads * (is_backward ? 3 * qk + 2 * v : qk + v);
    const CostModel& cost = config_.cost;
    const double rate = is_backward ? cost.backward_flops_per_second : cost.flops_per_second;
    return whole_ns(flops / rate) + whole_ns(cost.seconds_per_launch);
  }

  double exchange_ns(std::int32_t rank, const Exchange& exchange, bool is_backward) const {
    const MovedByLink& moved = moved_.of(rank, exchange);
    const double bytes = row_bytes(config_, exchange.role, is_backward) * exchange.heads.size();
    const auto leg = [&](Link link, double rate, double delay) {
      const Moved& on = moved[link];
      return whole_ns(static_cast<double>(std::max(on.rows[0], on.rows[1])) * bytes / rate) +
             whole_ns(delay * static_cast<double>(std::max(on.peers[0], on.peers[1])));
    };
    const CostModel& cost = config_.cost;
    return std::max(
               leg(kInside, cost.bytes_per_second, cost.seconds_per_transfer),
               leg(kNetwork, cost.network_bytes_per_second, cost.network_seconds_per_transfer)) +
           leg(kOnward, cost.bytes_per_second, cost.seconds_per_transfer);
  }

  const Plan& plan_;
  const PlanConfig& config_;
  MovedRowsOfRanks moved_;
};

}  // namespace

void check_times(const Plan& plan, const std::vector<SentRows>& sent, Problems& problems) {
  const TimeCheck times(plan, sent);
  double forward = 0.0, backward = 0.0, busiest = 0.0;
  std::size_t num_steps = 0;
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    const PassEnds there = times.pass_of(r, false);
    forward = std::max({forward, there.attends, there.returns});
    busiest = std::max(busiest, there.attending);
    backward = std::max(backward, times.pass_of(r, true).all);
    num_steps = std::max({num_steps, plan.ranks[r].forward.size(), plan.ranks[r].backward.size()});
  }
  // A step has six roundings, of which each may go the other way.
  const double tolerance = 6.0 * static_cast<double>(num_steps);
  const auto compare = [&](const char* what, double reported, double counted_ns) {
    if (std::abs(reported * 1e9 - counted_ns) <= tolerance + 1e-9 * counted_ns) return;
    problems.add("the report predicts ", what, " of ", reported, " s, the steps ",
                 counted_ns * 1e-9, " s");
  };
  compare("a forward", plan.report.forward_seconds, forward);
  compare("a backward", plan.report.backward_seconds, backward);
  compare("exposed communication", plan.report.exposed_comm_seconds, forward - busiest);
}

}  // namespace magi::planner
