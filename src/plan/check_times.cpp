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
        moved_(num_ranks_ * 2 * num_segments_),
        staying_(moved_.size(), 0) {
    for (const Transfer& t : plan.transfers) {
      if (t.src == t.dst) staying_[index(t.dst, t.space, t.dst_segment)] += t.num_rows;
    }
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
  /// Rows of the segment that the rank fills with its own.
  std::int64_t staying(std::int32_t rank, const Exchange& exchange) const {
    return staying_[index(rank, magi::space_of(exchange.role), exchange.segment)];
  }
  /// Rows that come back to the rank, their owner or who handed them on.
  std::int64_t back(std::int32_t rank, const Exchange& exchange) const {
    std::int64_t rows = 0;
    for (const Moved& moved : of(rank, exchange)) rows += moved.rows[1];
    return rows;
  }

 private:
  std::size_t index(std::int32_t rank, Space space, std::int32_t segment) const {
    return (static_cast<std::size_t>(rank) * 2 + static_cast<std::size_t>(space)) * num_segments_ +
           static_cast<std::size_t>(segment);
  }

  std::size_t num_ranks_;
  std::size_t num_segments_;
  std::int32_t node_;
  std::vector<MovedByLink> moved_;     ///< [num_ranks, 2, num_segments]
  std::vector<std::int64_t> staying_;  ///< the same
};

constexpr double kMostNs = 0x1p50;

double whole_ns(double seconds) { return std::round(std::min(seconds * 1e9, kMostNs)); }

/// Sums of narrower types are float32.
double sum_bytes_of(const PlanConfig& config) { return std::max(config.element_bytes, 4); }

/// Bytes of a row for one kv head. Queries have a group of heads for each.
double row_bytes(const PlanConfig& config, const ReturnsOnce& once, Role role, bool is_backward) {
  const double qk = config.head_dim_qk;
  const double v = config.head_dim_v;
  // Parts travel as they are summed.
  const double back = once.of(role) ? config.element_bytes : sum_bytes_of(config);
  const std::int32_t group = config.num_heads_q / config.num_heads_kv;
  switch (role) {
    case Role::KeysValues:
      return (qk + v) * config.element_bytes;
    case Role::KeyGradients:
      return (qk + v) * back;
    case Role::Queries:  // back with out and its gradient
      return group * (is_backward ? qk + 2 * v : qk) * config.element_bytes;
    case Role::Results:
      return group * v * back;
    case Role::QueryGradients:
      return group * qk * back;
  }
  return 0.0;
}

/// What a rank reads and writes besides attention, where some rank attends more than once.
class SumCheck {
 public:
  SumCheck(const Plan& plan, std::size_t rank, const ReturnsOnce& once, bool is_backward,
           std::int64_t rows_back)
      : config_(plan.config),
        own_(plan.ranks[rank]),
        once_(once),
        sum_(sum_bytes_of(plan.config)),
        key_(plan.config.head_dim_qk + plan.config.head_dim_v),
        is_backward_(is_backward) {
    const std::int32_t group = config_.num_heads_q / config_.num_heads_kv;
    query_ = static_cast<double>(group) * (is_backward ? config_.head_dim_qk : config_.head_dim_v);
    const auto writes = [](const Attend& a) { return a.q_segment == 0 && !a.slices.empty(); };
    is_summed_ = rows_back > 0 || std::ranges::count_if(own_.attends, writes) > 1;
  }

  double of_attend(std::size_t index) const {
    const Attend& attend = own_.attends[index];
    const bool is_narrow = config_.element_bytes < sum_;
    double bytes = 0.0;
    if (attend.is_merging) {
      bytes = 2.0 * sum_ * span(attend, true) * attend.heads.size() * query_;
    } else if (is_narrow && !once_.queries && (attend.q_segment > 0 || is_summed_)) {
      const double element = attend.q_segment > 0 ? sum_ - config_.element_bytes : 2.0 * sum_;
      bytes = element * rows(own_.q, attend.q_segment) * attend.heads.size() * query_;
    }
    if (!is_backward_ || once_.keys) return bytes;
    bool is_adding = false;
    for (std::size_t a = 0; a < index; ++a) {
      const Attend& before = own_.attends[a];
      is_adding |=
          before.k_segment == attend.k_segment && std::max(before.heads.begin, attend.heads.begin) <
                                                      std::min(before.heads.end, attend.heads.end);
    }
    const double head = 2.0 * sum_ * attend.heads.size() * key_;
    if (is_adding) return bytes + head * span(attend, false);
    return attend.k_segment == 0 && is_narrow ? bytes + head * rows(own_.k, 0) : bytes;
  }

  /// `back`: rows that come back; `stay`: those of the exchange that do not leave the rank.
  double of_exchange(const Exchange& exchange, std::int64_t back, std::int64_t stay) const {
    const double heads = exchange.heads.size();
    if (!is_returning(exchange.role) || once_.of(exchange.role)) {
      return 2.0 * static_cast<double>(stay) * heads *
             row_bytes(config_, once_, exchange.role, is_backward_);
    }
    const bool is_keys = magi::space_of(exchange.role) == Space::Keys;
    return 3.0 * sum_ * static_cast<double>(back + stay) * heads * (is_keys ? key_ : query_);
  }

 private:
  static double rows(const TokenSpace& space, std::int32_t segment) {
    return space.segments[static_cast<std::size_t>(segment)].num_rows;
  }
  /// Rows of an attend's slices, from the first to the last.
  double span(const Attend& attend, bool is_of_queries) const {
    std::int32_t begin = kMaxRows, end = 0;
    for (std::int32_t s = attend.slices.begin; s < attend.slices.end; ++s) {
      const BandSlice& slice = own_.slices[static_cast<std::size_t>(s)];
      begin = std::min(begin, is_of_queries ? slice.q0 : slice.k0);
      end = std::max(end, is_of_queries ? slice.q1 : slice.k1);
    }
    return std::max(end - begin, 0);
  }

  const PlanConfig& config_;
  const RankPlan& own_;
  const ReturnsOnce& once_;
  double sum_;
  double query_ = 0.0, key_;  ///< elements of a row for one kv head
  bool is_backward_, is_summed_ = false;
};

/// One pass of one rank, in nanoseconds.
struct PassEnds {
  double all = 0.0;
  double attends = 0.0;
  double returns = 0.0;
  double attending = 0.0;  ///< the sum over attends
};

class TimeCheck {
 public:
  TimeCheck(const Plan& plan, const std::vector<SentRows>& sent, const ReturnsOnce& once)
      : plan_(plan), config_(plan.config), once_(once), moved_(plan, sent) {
    for (const RankPlan& rank : plan.ranks) is_single_ &= rank.attends.size() <= 1;
    is_whole_ = config_.devices_per_node == 0 || config_.devices_per_node >= config_.num_ranks;
  }

  PassEnds pass_of(std::size_t rank, bool is_backward) const {
    const RankPlan& own = plan_.ranks[rank];
    const std::vector<Step>& steps = is_backward ? own.backward : own.forward;
    std::vector<double> ends;
    ends.reserve(steps.size());
    const SumCheck sums = sums_of(rank, is_backward);
    PassEnds pass;
    double exchanges = 0.0;
    for (const Step& step : steps) {
      const bool is_attend = step.kind == StepKind::Attend;
      double awaited = 0.0;
      for (const std::int32_t before : step.after) {
        if (before >= 0) awaited = std::max(awaited, ends[static_cast<std::size_t>(before)]);
      }
      const auto index = static_cast<std::size_t>(step.index);
      const double took = is_attend ? whole_attend_ns(rank, index, sums, is_backward)
                                    : whole_exchange_ns(rank, index, sums, is_backward);
      if (is_single_ && is_whole_) awaited -= hidden_ns(own, step, took, is_backward);
      const double end = std::max(awaited, is_attend ? pass.attends : exchanges) + took;
      ends.push_back(end);
      if (is_attend) {
        pass.attending += took;
        pass.attends = end;
      } else {
        exchanges = end;
        if (is_returning(plan_.exchanges[index].role)) pass.returns = std::max(pass.returns, end);
      }
    }
    pass.all = std::max(exchanges, pass.attends);
    return pass;
  }

 private:
  double launches_ns(std::int32_t count) const {
    return count * whole_ns(config_.cost.seconds_per_launch);
  }
  double memory_ns(double bytes) const {
    return whole_ns(bytes / config_.cost.memory_bytes_per_second);
  }

  SumCheck sums_of(std::size_t rank, bool is_backward) const {
    std::int64_t results = 0;
    for (const Exchange& exchange : plan_.exchanges) {
      if (exchange.role != Role::Results) continue;
      results += moved_.back(static_cast<std::int32_t>(rank), exchange);
    }
    return {plan_, rank, once_, is_backward, results};
  }

  double whole_attend_ns(std::size_t rank, std::size_t index, const SumCheck& sums,
                         bool is_backward) const {
    const RankPlan& own = plan_.ranks[rank];
    const double work = attend_ns(own, own.attends[index], is_backward);
    if (is_single_) return work;
    double more = memory_ns(sums.of_attend(index));
    const auto sees = [](const Attend& attend) { return !attend.slices.empty(); };
    const auto first = own.attends.begin();
    if (sees(own.attends[index]) &&
        std::any_of(first, first + static_cast<std::ptrdiff_t>(index), sees)) {
      more += launches_ns(is_backward ? 10 : 1) +
              std::min(std::floor(work / 3.0), launches_ns(is_backward ? 15 : 8));
    }
    return work + more;
  }
  double whole_exchange_ns(std::size_t index_of_rank, std::size_t index, const SumCheck& sums,
                           bool is_backward) const {
    const Exchange& exchange = plan_.exchanges[index];
    const auto rank = static_cast<std::int32_t>(index_of_rank);
    const double travel = exchange_ns(rank, exchange, is_backward);
    if (is_single_) return travel;
    const double bytes =
        sums.of_exchange(exchange, moved_.back(rank, exchange), moved_.staying(rank, exchange));
    return travel + memory_ns(bytes) + launches_ns(2);
  }

  /// Of a rank's one attend, which takes keys as they come, in two parts; in the backward of the
  /// gradients that leave it from its middle on.
  double hidden_ns(const RankPlan& own, const Step& step, double took, bool is_backward) const {
    if (step.kind == StepKind::Exchange) {
      const std::vector<Step>& steps = is_backward ? own.backward : own.forward;
      const bool is_behind_attend =
          step.after[0] >= 0 &&
          steps[static_cast<std::size_t>(step.after[0])].kind == StepKind::Attend;
      if (!is_behind_attend) return 0.0;
      return std::min(std::floor(attend_ns(own, own.attends[0], is_backward) / 2.0), took);
    }
    if (is_backward) return 0.0;
    RankPlan coming{.slices = own.slices};
    const std::int32_t begin = own.k.segments[0].num_rows;
    for (BandSlice& slice : coming.slices) {
      slice = slice.k1 > begin ? cut_k(slice, {begin, slice.k1}) : BandSlice{};
    }
    const double last = attend_ns(coming, own.attends[0], false) - launches_ns(1);
    return took - std::floor(std::max(last, 0.0) / 2.0);
  }

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
    const double bytes =
        row_bytes(config_, once_, exchange.role, is_backward) * exchange.heads.size();
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
  const ReturnsOnce& once_;
  MovedRowsOfRanks moved_;
  bool is_single_ = true;  ///< no rank attends more than once
  bool is_whole_ = true;   ///< one node
};

}  // namespace

void check_times(const Plan& plan, const std::vector<SentRows>& sent, const ReturnsOnce& once,
                 Problems& problems) {
  const TimeCheck times(plan, sent, once);
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
