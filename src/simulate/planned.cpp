// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "plan/cost/loads.hpp"
#include "plan/cost/report.hpp"
#include "plan/cost/step_walk.hpp"
#include "plan/value/config.hpp"
#include "plan/value/spaces.hpp"
#include "simulate/strategies.hpp"

namespace magi::simulate {
namespace {

/// The times that the steps of a plan take on a cluster.
class PlanTimes {
 public:
  PlanTimes(const planner::PlanWithLoads& planned, const Cluster& cluster)
      : plan_(planned.plan),
        cluster_(cluster),
        loads_(planned.loads),
        is_overlapping_(planner::takes_keys_as_they_come(planned.plan)) {}

  /// Adds the pass of one rank.
  void add_rank(std::int32_t rank, Pass pass, PassFigures& figures) const {
    const RankPlan& own = plan_.ranks[static_cast<std::size_t>(rank)];
    const std::vector<Step>& steps = pass == Pass::Backward ? own.backward : own.forward;
    const double coming = is_overlapping_ ? in_flight_seconds(own, pass) : 0.0;
    planner::WalkedPass<double> walked;
    walked.steps.reserve(steps.size());
    planner::walk(
        steps,
        [&](const Step& step) {
          if (step.kind == StepKind::Attend) return attend_time(own, step.index, pass);
          return exchange_time(rank, plan_.exchanges[static_cast<std::size_t>(step.index)], pass);
        },
        [&](std::size_t i, double took) {
          if (!is_overlapping_) return 0.0;
          return planner::hidden_by_arrival<double>(steps, i, walked, pass == Pass::Backward, took,
                                                    coming);
        },
        walked);
    const double seconds = walked.end() + flat_copy_seconds(rank, pass);
    figures.seconds = std::max(figures.seconds, seconds);
    figures.attending_seconds = std::max(figures.attending_seconds, walked.attending);
  }

  /// The bytes that all ranks send in a pass.
  void add_bytes(Pass pass, PassFigures& figures) const {
    const std::vector<Step>& steps =
        pass == Pass::Backward ? plan_.ranks[0].backward : plan_.ranks[0].forward;
    for (const Step& step : steps) {
      if (step.kind != StepKind::Exchange) continue;
      const Exchange& exchange = plan_.exchanges[static_cast<std::size_t>(step.index)];
      for (std::int32_t rank = 0; rank < plan_.config.num_ranks; ++rank) {
        const planner::SegmentTraffic& moved = traffic(rank, exchange);
        const std::int64_t bytes = row_bytes(exchange, pass);
        figures.bytes[static_cast<std::size_t>(LinkClass::Node)] +=
            (moved.inside.rows_in + moved.onward.rows_in) * bytes;
        figures.bytes[static_cast<std::size_t>(LinkClass::Network)] +=
            moved.network.rows_in * bytes;
      }
    }
  }

  std::int64_t memory(std::int32_t rank) const {
    const PlanConfig& config = plan_.config;
    const std::int64_t own = plan_.placement_q.rows_of(rank);
    const std::int64_t of_copies =
        plan_.num_head_shares > 1 ? own * flat_elements(Pass::Backward) * config.element_bytes : 0;
    return own * row_memory(config) + memory_of_keys(rank) + memory_of_queries(rank) + of_copies;
  }

 private:
  struct Moved {
    std::int64_t received = 0;
    std::int64_t sent = 0;
  };
  /// The most rows of all heads that are there at a time, of stages that take turns in memory.
  Moved rows_in_flight(std::int32_t rank) const {
    Moved most;
    for (const Exchange& exchange : plan_.exchanges) {
      const planner::SegmentTraffic& moved = traffic(rank, exchange);
      const auto part = [&](std::int64_t rows) {
        return rows * exchange.heads.size() * plan_.stages_in_flight / plan_.config.num_heads_kv;
      };
      most.received = std::max(most.received, part(moved.rows_in()));
      most.sent = std::max(most.sent, part(moved.rows_out()));
    }
    return most;
  }
  /// Copies of own rows count where heads are shared: a share of them is computed with what others
  /// send.
  Moved moved_rows(std::int32_t rank, Space space) const {
    if (plan_.stages_in_flight > 0 && space == Space::Keys) return rows_in_flight(rank);
    Moved rows;
    const RankPlan& own = plan_.ranks[static_cast<std::size_t>(rank)];
    const std::vector<Segment>& segments = planner::space_of(own, space).segments;
    for (std::size_t s = 1; s < segments.size(); ++s) {
      const auto& moved = loads_.traffic(rank, space, static_cast<std::int32_t>(s));
      rows.sent += moved.rows_out();
      rows.received += plan_.num_head_shares > 1 ? segments[s].num_rows : moved.rows_in();
    }
    return rows;
  }

  /// Received keys, float32 sums for these and for own ones, and partials of own ones from others;
  /// or received keys and their gradients. With head shares a received row has the heads of one.
  std::int64_t memory_of_keys(std::int32_t rank) const {
    const PlanConfig& config = plan_.config;
    const std::int64_t shares = plan_.num_head_shares;
    const Moved keys = moved_rows(rank, Space::Keys);
    if (loads_.whole().of(Space::Keys)) {
      return 2 * keys.received * config.element_bytes * key_elements(config) / shares;
    }
    const std::int64_t bytes =
        (keys.received * config.element_bytes + (keys.received + keys.sent) * kSumBytes) / shares;
    return (bytes + plan_.placement_k.rows_of(rank) * kSumBytes) * key_elements(config);
  }

  /// Received queries with out and its gradient, lse, delta and a sum of dq, and partials of own
  /// ones; or dq beside the sum, which own ones, for which the rank computes nothing, do without.
  std::int64_t memory_of_queries(std::int32_t rank) const {
    const PlanConfig& config = plan_.config;
    const Moved queries = moved_rows(rank, Space::Queries);
    const bool is_whole = loads_.whole().of(Space::Queries);
    const std::int64_t sum = query_elements(config) * kSumBytes;
    const std::int64_t tensors =
        query_elements(config) * (is_whole ? 2 : 1) + 2 * out_elements(config);
    const std::int64_t received =
        tensors * config.element_bytes + sum + 2 * config.num_heads_q * kSumBytes;
    const std::int64_t of_others = queries.received * received / plan_.num_head_shares;
    return is_whole ? of_others - plan_.placement_q.rows_of(rank) * sum
                    : of_others + queries.sent * sum / plan_.num_head_shares;
  }

  /// Elements of a row that plans with head shares copy into per-share rows and back: q, k, v and
  /// out; in the backward the gradients of all four too.
  std::int64_t flat_elements(Pass pass) const {
    const std::int64_t elements =
        query_elements(plan_.config) + out_elements(plan_.config) + key_elements(plan_.config);
    return pass == Pass::Backward ? 2 * elements : elements;
  }
  /// Reading and writing them, which nothing else runs beside.
  double flat_copy_seconds(std::int32_t rank, Pass pass) const {
    if (plan_.num_head_shares == 1) return 0.0;
    const std::int64_t bytes =
        2 * plan_.placement_q.rows_of(rank) * flat_elements(pass) * plan_.config.element_bytes;
    return static_cast<double>(bytes) / cluster_.memory_bytes_per_second;
  }

  const planner::SegmentTraffic& traffic(std::int32_t rank, const Exchange& exchange) const {
    return loads_.traffic(rank, space_of(exchange.role), exchange.segment);
  }

  /// Query heads of an exchange or an attention call.
  double heads_of(Range heads) const {
    return static_cast<double>(plan_.config.num_heads_q) * heads.size() / plan_.config.num_heads_kv;
  }

  /// Returning rows are float32 partials, unless it is whole; lse comes back with a result, and
  /// goes out again with a query of the backward.
  std::int64_t row_bytes(const Exchange& exchange, Pass pass) const {
    const std::int64_t bytes =
        planner::bytes_per_row(plan_.config, exchange, pass == Pass::Backward);
    const std::int64_t group = plan_.config.num_heads_q / plan_.config.num_heads_kv;
    const bool has_lse = exchange.role == Role::Results ||
                         (exchange.role == Role::Queries && pass == Pass::Backward);
    const bool is_partial = is_returning(exchange.role) && !loads_.whole().of(exchange.role);
    return (is_partial ? bytes / plan_.config.element_bytes * kSumBytes : bytes) +
           (has_lse ? group * exchange.heads.size() * kSumBytes : 0);
  }

  double exchange_time(std::int32_t rank, const Exchange& exchange, Pass pass) const {
    const planner::SegmentTraffic& moved = traffic(rank, exchange);
    const std::int64_t bytes = row_bytes(exchange, pass);
    const auto add = [bytes](LinkClass link, const planner::LinkTraffic& rows, Traffic& leg) {
      leg.add(link, std::max(rows.rows_in, rows.rows_out) * bytes,
              std::max(rows.peers_in, rows.peers_out));
    };
    Traffic first;
    add(LinkClass::Node, moved.inside, first);
    add(LinkClass::Network, moved.network, first);
    Traffic onward;
    add(LinkClass::Node, moved.onward, onward);
    const double seconds = exchange_seconds(cluster_, first) + exchange_seconds(cluster_, onward);
    if (exchange.role != Role::Results || loads_.whole().of(exchange.role)) return seconds;
    return seconds +
           merge_seconds(cluster_, plan_.config, moved.rows_out(), heads_of(exchange.heads));
  }

  /// The pairs that a forward's one attention call computes with keys of other ranks; a launch is
  /// no part of it.
  double in_flight_seconds(const RankPlan& own, Pass pass) const {
    const Work work = work_of(planner::in_flight_slices(own));
    if (pass == Pass::Backward || work.area == 0) return 0.0;
    return attend_seconds(cluster_, plan_.config, work, pass, heads_of(own.attends.front().heads)) -
           cluster_.kernel(pass).seconds_per_launch;
  }

  double attend_time(const RankPlan& own, std::int32_t index, Pass pass) const {
    const Attend& attend = own.attends[static_cast<std::size_t>(index)];
    const auto first = static_cast<std::size_t>(attend.slices.begin);
    const auto count = static_cast<std::size_t>(attend.slices.size());
    const Work work = work_of(std::span(own.slices).subspan(first, count));
    const double heads = heads_of(attend.heads);
    const double seconds = attend_seconds(cluster_, plan_.config, work, pass, heads);
    if (!attend.is_merging || pass == Pass::Backward) return seconds;
    const std::int64_t rows = own.q.segments[static_cast<std::size_t>(attend.q_segment)].num_rows;
    return seconds + merge_seconds(cluster_, plan_.config, std::min(rows, work.rows), heads);
  }

  const Plan& plan_;
  const Cluster& cluster_;
  const planner::PlanLoads& loads_;
  bool is_overlapping_;
};

}  // namespace

CostModel cost_of(const Cluster& cluster) {
  return {.flops_per_second = cluster.forward.flops_per_second,
          .backward_flops_per_second = cluster.backward.flops_per_second,
          .bytes_per_second = cluster.node.bytes_per_second,
          .memory_bytes_per_second = cluster.memory_bytes_per_second,
          .seconds_per_transfer = cluster.node.seconds_per_message,
          .network_bytes_per_second = cluster.network.bytes_per_second,
          .network_seconds_per_transfer = cluster.network.seconds_per_message};
}

Figures simulate_plan(const Problem& problem, PlacementAlgorithm algorithm) {
  PlanConfig config = problem.config;
  config.placement.algorithm = algorithm;
  config.cost = cost_of(problem.cluster);
  config.devices_per_node = problem.cluster.devices_per_node;
  const planner::PlanWithLoads planned = planner::make_plan_with_loads(problem.mask, config);
  const Plan& plan = planned.plan;
  const std::int64_t exchange_bytes = *std::ranges::max_element(plan.report.rank_memory);
  if (planner::is_above_bound(config, exchange_bytes)) {
    return {.refusal = "for rows of others a rank would need " + std::to_string(exchange_bytes) +
                       " bytes, of which max_exchange_bytes allows " +
                       std::to_string(*config.max_exchange_bytes)};
  }
  const PlanTimes times(planned, problem.cluster);
  Figures figures;
  for (const Pass pass : {Pass::Forward, Pass::Backward}) {
    PassFigures& target = figures.passes[static_cast<std::size_t>(pass)];
    for (std::int32_t rank = 0; rank < config.num_ranks; ++rank) times.add_rank(rank, pass, target);
    times.add_bytes(pass, target);
  }
  for (std::int32_t rank = 0; rank < config.num_ranks; ++rank) {
    figures.rank_work.push_back(
        pairs_of_heads(plan.report.rank_area[static_cast<std::size_t>(rank)],
                       config.num_heads_q / plan.num_head_shares));
    figures.memory_bytes = std::max(figures.memory_bytes, times.memory(rank));
  }
  return figures;
}

}  // namespace magi::simulate
