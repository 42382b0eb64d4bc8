// SPDX-License-Identifier: Apache-2.0
#include "plan/cost/timeline.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "plan/cost/step_walk.hpp"
#include "plan/cost/sum_bytes.hpp"
#include "plan/tables/stages.hpp"
#include "plan/tables/steps.hpp"

namespace magi::planner {
namespace {

constexpr std::int32_t kMaxChosenDegree = 8;

/// The cost of merging per element of out: it is float32, written, read, written and rounded.
constexpr std::int64_t kMergeBytes = 16;

/// The time that an attention call which is not its rank's first takes besides its work: kernels in
/// front of it and behind it, and the beginning and the end of its own, at which few
/// multiprocessors work. The latter are a third of the work of a short attend, and so many launches
/// at most. Of eight stages of one causal document on two H200 each takes 45 us more than an eighth
/// of one attention call in the forward, and 130 us in the backward.
struct FurtherAttend {
  std::int32_t launches, most_idle_launches;
};
constexpr FurtherAttend kForward{1, 8};
constexpr FurtherAttend kBackward{10, 15};
constexpr std::int64_t kIdlePart = 3;  ///< one in so many
/// An exchange beside attends is kernels and events of its own.
constexpr std::int32_t kLaunchesOfExchange = 2;
/// q, k, v, out and lse are copied as per-share rows and back; then these, dout and three
/// gradients.
constexpr std::int32_t kFlatCopies = 5;
constexpr std::int32_t kBackwardFlatCopies = 9;

/// Two weeks: no step takes longer, and sums over all steps stay far inside int64.
constexpr double kMostNs = 0x1p50;

/// amount / rate in nanoseconds. No sum of products, so that fused multiply-add cannot change it.
std::int64_t to_ns(double amount, double rate) {
  return std::llround(std::min(amount / rate * 1e9, kMostNs));
}

/// A share `part` of `whole` of what a stage or all heads amount to.
struct Share {
  std::int32_t part = 1;
  std::int32_t whole = 1;

  double of(std::int64_t amount) const {
    return static_cast<double>(amount) * part / static_cast<double>(whole);
  }
};

/// Durations of the steps of one pass.
struct Rates {
  const PlanConfig& config;
  double flops_per_pair;  ///< all query heads
  double flops_per_second;

  std::int64_t attend_ns(std::int64_t area, Share share) const {
    if (area == 0) return 0;
    return to_ns(share.of(area) * flops_per_pair, flops_per_second) +
           to_ns(config.cost.seconds_per_launch, 1.0);
  }

  /// The time of `area` pairs of keys that come while an attention call is under way.
  std::int64_t in_flight_ns(std::int64_t area) const {
    return to_ns(static_cast<double>(area) * flops_per_pair, flops_per_second);
  }

  /// A merge into `rows` rows of earlier results, of all heads.
  std::int64_t merge_ns(std::int64_t rows) const {
    const std::int64_t row = std::int64_t{config.num_heads_q} * config.head_dim_v;
    return memory_ns(rows * row * kMergeBytes);
  }
  /// Bytes that a rank reads and writes in its own memory.
  std::int64_t memory_ns(std::int64_t bytes) const {
    return to_ns(static_cast<double>(bytes), config.cost.memory_bytes_per_second);
  }
  /// A copy of `rows` rows of K and V.
  std::int64_t copy_ns(std::int64_t rows) const {
    return memory_ns(2 * rows * bytes_per_row(config));
  }

  /// `row_bytes` is that of the whole.
  std::int64_t exchange_ns(const SegmentTraffic& traffic, std::int64_t row_bytes,
                           Share share) const {
    const auto leg_ns = [&](const LinkTraffic& links, double rate, double delay) {
      const std::int64_t rows = std::max(links.rows_in, links.rows_out);
      const std::int32_t peers = std::max(links.peers_in, links.peers_out);
      return to_ns(share.of(rows * row_bytes), rate) + to_ns(delay * peers, 1.0);
    };
    const CostModel& cost = config.cost;
    const auto inside = leg_ns(traffic.inside, cost.bytes_per_second, cost.seconds_per_transfer);
    const auto network =
        leg_ns(traffic.network, cost.network_bytes_per_second, cost.network_seconds_per_transfer);
    return std::max(inside, network) +
           leg_ns(traffic.onward, cost.bytes_per_second, cost.seconds_per_transfer);
  }
};

/// The backward has five products: S and dQ, dK over head_dim_qk; dP and dV over head_dim_v.
Rates rates_of(const PlanConfig& config, bool is_backward) {
  const std::int32_t dims = is_backward ? 3 * config.head_dim_qk + 2 * config.head_dim_v
                                        : config.head_dim_qk + config.head_dim_v;
  return {config, 2.0 * config.num_heads_q * dims,
          is_backward ? config.cost.backward_flops_per_second : config.cost.flops_per_second};
}

/// Bytes of a row on its way. Parts of results and gradients travel as they are summed.
std::int64_t travelling_bytes(const Plan& plan, const WholeReturns& whole, const Exchange& exchange,
                              bool is_backward) {
  const std::int64_t bytes = bytes_per_row(plan.config, exchange, is_backward);
  if (!is_returning(exchange.role) || whole.of(exchange.role)) return bytes;
  return bytes / plan.config.element_bytes * sum_element_bytes(plan.config);
}

/// Pairs of a rank's first attention call whose keys other ranks own.
std::int64_t in_flight_area(const RankPlan& rank) {
  std::int64_t pairs = 0;
  for (const BandSlice& slice : in_flight_slices(rank)) pairs += magi::area(slice);
  return pairs;
}

/// Whether an attention call sees keys, and one before it does.
bool is_further_work(const std::vector<Attend>& attends, std::int32_t index) {
  const auto sees = [](const Attend& attend) { return !attend.slices.empty(); };
  const auto end = attends.begin() + index;
  return sees(*end) && std::any_of(attends.begin(), end, sees);
}

/// The values that all ranks of a plan have in common in one pass.
struct PassRules {
  const Plan& plan;
  const PlanLoads& loads;
  bool is_backward;
  bool is_single;
  bool is_overlapping;  ///< takes_keys_as_they_come

  std::int64_t launches_ns(std::int64_t count) const {
    return count * to_ns(plan.config.cost.seconds_per_launch, 1.0);
  }
  std::int64_t exchange_ns() const { return is_single ? 0 : launches_ns(kLaunchesOfExchange); }
  /// The time of an attention call of a rank whose work takes `work_ns`.
  std::int64_t attend_ns(const RankPlan& rank, std::int32_t attend, std::int64_t work_ns) const {
    if (!is_further_work(rank.attends, attend)) return 0;
    const FurtherAttend& further = is_backward ? kBackward : kForward;
    return launches_ns(further.launches) +
           std::min(work_ns / kIdlePart, launches_ns(further.most_idle_launches));
  }
};

PassTimes times_of_steps(const Plan& plan, std::span<const Step> steps,
                         const WalkedPass<std::int64_t>& pass) {
  PassTimes times{.end_ns = pass.end(),
                  .attends_end_ns = pass.line[static_cast<std::size_t>(StepKind::Attend)],
                  .attending_ns = pass.attending};
  times.steps.reserve(steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const StepTime time{.begin_ns = pass.steps[i].begin, .end_ns = pass.steps[i].end};
    times.steps.push_back(time);
    const bool is_return =
        steps[i].kind == StepKind::Exchange &&
        is_returning(plan.exchanges[static_cast<std::size_t>(steps[i].index)].role);
    if (is_return) times.returns_end_ns = std::max(times.returns_end_ns, time.end_ns);
  }
  return times;
}

PassTimes times_of_rank(const PassRules& rules, std::int32_t rank, const SumBytes& sums) {
  const Plan& plan = rules.plan;
  const PlanLoads& loads = rules.loads;
  const bool is_backward = rules.is_backward;
  const RankPlan& own = plan.ranks[static_cast<std::size_t>(rank)];
  const Rates rates = rates_of(plan.config, is_backward);
  const std::vector<Step>& steps = is_backward ? own.backward : own.forward;
  const std::int64_t in_flight_ns =
      rules.is_overlapping && !is_backward ? rates.in_flight_ns(in_flight_area(own)) : 0;
  WalkedPass<std::int64_t> pass;
  pass.steps.reserve(steps.size());
  walk(
      steps,
      [&](const Step& step) {
        const auto index = static_cast<std::size_t>(step.index);
        if (step.kind == StepKind::Attend) {
          const std::int64_t work_ns =
              rates.attend_ns(loads.area(rank, step.index),
                              {own.attends[index].heads.size(), plan.config.num_heads_kv});
          return work_ns + rates.memory_ns(sums.of_attend(step.index)) +
                 rules.attend_ns(own, step.index, work_ns);
        }
        const Exchange& exchange = plan.exchanges[index];
        return rates.exchange_ns(loads.traffic(rank, space_of(exchange.role), exchange.segment),
                                 travelling_bytes(plan, loads.whole(), exchange, is_backward), {}) +
               rates.memory_ns(sums.of_exchange(step.index)) + rules.exchange_ns();
      },
      [&](std::size_t i, std::int64_t took) {
        return rules.is_overlapping
                   ? hidden_by_arrival(steps, i, pass, is_backward, took, in_flight_ns)
                   : 0;
      },
      pass);
  return times_of_steps(plan, steps, pass);
}

/// The loads that a rank computes and moves in a forward of any degree.
struct RankWork {
  std::int64_t own_area = 0;     ///< pairs with own keys
  std::int64_t remote_area = 0;  ///< pairs with keys of other ranks
  std::int32_t rows_q = 0;       ///< own ones
  std::int32_t rows_k = 0;
  SegmentTraffic traffic;  ///< of all remote rows
};

/// The loads of all ranks, from a plan whose remote rows lie in one segment.
std::vector<RankWork> work_of_ranks(const Plan& plan, const PlanLoads& loads) {
  std::vector<RankWork> work;
  work.reserve(plan.ranks.size());
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    const auto rank = static_cast<std::int32_t>(r);
    const std::int64_t remote_area = in_flight_area(plan.ranks[r]) + loads.area(rank, 1);
    work.push_back({.own_area = loads.rank_area(rank) - remote_area,
                    .remote_area = remote_area,
                    .rows_q = plan.placement_q.rows_of(rank),
                    .rows_k = plan.placement_k.rows_of(rank),
                    .traffic = loads.traffic(rank, Space::Keys, 1)});
  }
  return work;
}

/// The forward of a rank with overlap degree 0: one attention call of all keys, which takes them as
/// they come or, between nodes, once they are gathered beside copies of own ones.
std::int64_t gathered_ns(const RankWork& work, const Rates& rates) {
  const std::int64_t exchange = rates.exchange_ns(work.traffic, bytes_per_row(rates.config), {});
  const std::int64_t attend = rates.attend_ns(work.own_area + work.remote_area, {});
  if (has_nodes(rates.config)) return exchange + rates.copy_ns(work.rows_k) + attend;
  return std::max(attend, exchange + left_behind_last_keys(rates.in_flight_ns(work.remote_area)));
}

/// Forward steps of a rank whose remote keys come in `num_parts` exchanges.
std::vector<Step> steps_in_parts(std::int32_t num_parts) {
  std::vector<Exchange> exchanges;
  RankPlan rank{.attends = {{.heads = {0, 1}}}};
  for (std::int32_t segment = 1; segment <= num_parts; ++segment) {
    exchanges.push_back({.segment = segment, .heads = {0, 1}});
    rank.attends.push_back({.k_segment = segment, .heads = {0, 1}, .is_merging = true});
  }
  make_steps(exchanges, rank);
  return rank.forward;
}

/// The forward of a rank whose remote keys come in stages.
class StagedForward {
 public:
  explicit StagedForward(const Rates& rates) : rates_(rates) {
    for (std::size_t parts = 0; parts < steps_.size(); ++parts) {
      steps_[parts] = steps_in_parts(static_cast<std::int32_t>(parts));
    }
  }

  std::int64_t ns(const RankWork& work, std::int32_t degree) {
    const PlanConfig& config = rates_.config;
    const auto remote_rows = static_cast<std::int32_t>(work.traffic.rows_in());
    const std::int32_t parts = useful_stages(config, degree, remote_rows);
    const std::int64_t own = rates_.attend_ns(work.own_area, {});
    const std::int64_t remote = parts > 0 ? rates_.attend_ns(work.remote_area, {1, parts}) : 0;
    const std::int64_t exchange =
        parts > 0 ? rates_.exchange_ns(work.traffic, bytes_per_row(config), {1, parts}) : 0;
    walk(
        steps_[static_cast<std::size_t>(parts)],
        [&](const Step& step) {
          if (step.kind == StepKind::Exchange) return exchange;
          return step.index == 0 ? own : remote;
        },
        [](std::size_t, std::int64_t) { return std::int64_t{0}; }, pass_);
    const std::int64_t merge = work.remote_area > 0 ? rates_.merge_ns(work.rows_q) : 0;
    return pass_.line[static_cast<std::size_t>(StepKind::Attend)] + merge;
  }

 private:
  const Rates& rates_;
  std::array<std::vector<Step>, kMaxChosenDegree + 1> steps_;  ///< by number of stages
  WalkedPass<std::int64_t> pass_;                              ///< kept for its memory
};

}  // namespace

std::vector<PassTimes> predict_times(const Plan& plan, const PlanLoads& loads, bool is_backward) {
  std::vector<PassTimes> times;
  times.reserve(plan.ranks.size());
  const PassRules rules{plan, loads, is_backward, is_single_attend(plan),
                        takes_keys_as_they_come(plan)};
  const std::vector<SumBytes> sums = sum_bytes(plan, loads, is_backward);
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    times.push_back(times_of_rank(rules, static_cast<std::int32_t>(r), sums[r]));
  }
  return times;
}

std::int64_t flat_copies_ns(const Plan& plan, bool is_backward) {
  if (plan.num_head_shares == 1) return 0;
  const std::int32_t launches = is_backward ? kBackwardFlatCopies : kFlatCopies;
  return to_ns(plan.config.cost.seconds_per_launch * launches, 1.0) +
         rates_of(plan.config, is_backward).memory_ns(flat_copy_bytes(plan, is_backward));
}

PlanTimes predict_plan(const Plan& plan, const PlanLoads& loads) {
  PlanTimes slowest;
  for (const PassTimes& times : predict_times(plan, loads, false)) {
    slowest.forward_ns = std::max({slowest.forward_ns, times.attends_end_ns, times.returns_end_ns});
    slowest.busiest_ns = std::max(slowest.busiest_ns, times.attending_ns);
  }
  for (const PassTimes& times : predict_times(plan, loads, true)) {
    slowest.backward_ns = std::max(slowest.backward_ns, times.end_ns);
  }
  slowest.forward_ns += flat_copies_ns(plan, false);
  slowest.backward_ns += flat_copies_ns(plan, true);
  return slowest;
}

bool is_worth_multiprocessors(const Plan& plan, const RankPlan& rank, bool is_backward) {
  if (plan.stages_in_flight == 0) return true;
  constexpr std::int64_t kAll = 132, kLeft = 8;  // multiprocessors
  const PlanConfig& config = plan.config;
  std::int64_t pairs = 0, rows = 0;
  for (const BandSlice& slice : rank.slices) pairs += magi::area(slice);
  for (const Segment& segment : std::span(rank.k.segments).subspan(1)) rows += segment.num_rows;
  const std::int64_t bytes = rows * bytes_per_row(config);
  const std::int64_t back =
      is_backward ? bytes / config.element_bytes * sum_element_bytes(config) : 0;
  const double rate =
      has_nodes(config) ? config.cost.network_bytes_per_second : config.cost.bytes_per_second;
  const std::int64_t exchanges_ns = to_ns(static_cast<double>(bytes + back), rate);
  return exchanges_ns > rates_of(config, is_backward).in_flight_ns(pairs) * kLeft / kAll;
}

GatheredStep::GatheredStep(const PlanConfig& config) {
  const auto pair_ns = [&](bool is_backward) {
    const Rates rates = rates_of(config, is_backward);
    return rates.flops_per_pair / rates.flops_per_second * 1e9;
  };
  forward_pair_ns_ = pair_ns(false);
  backward_pair_ns_ = pair_ns(true);
  const auto row_bytes = static_cast<double>(bytes_per_row(config));
  row_ns_ = row_bytes / config.cost.bytes_per_second * 1e9;
  returning_ns_ = row_ns_ / config.element_bytes * sum_element_bytes(config);
  latency_ns_ = config.cost.seconds_per_transfer * (config.num_ranks - 1) * 1e9;
  launch_ns_ = config.cost.seconds_per_launch * 1e9;
}

/// NOTE: sums of products; equal on all machines because nothing here is compiled with fused
/// multiply-adds (magi_same_numbers in CMake).
double GatheredStep::ns(std::int64_t area, std::int64_t rows) const {
  const auto pairs = static_cast<double>(area);
  const double fetch = rows > 0 ? static_cast<double>(rows) * row_ns_ + latency_ns_ : 0.0;
  const double give_back = rows > 0 ? static_cast<double>(rows) * returning_ns_ + latency_ns_ : 0.0;
  const double forward_work = pairs * forward_pair_ns_;
  const double attend = pairs * backward_pair_ns_ + launch_ns_;
  const double forward =
      std::max(forward_work + launch_ns_, fetch + left_behind_last_keys(forward_work));
  return forward + fetch + attend + std::max(0.0, give_back - beside_returning_gradients(attend));
}

std::int32_t choose_degree(const Plan& plan, const PlanLoads& loads) {
  if (plan.exchanges.empty()) return 0;
  const Rates rates = rates_of(plan.config, false);
  const std::vector<RankWork> work = work_of_ranks(plan, loads);
  std::int32_t best = 0;
  std::int64_t best_ns = 0;
  for (const RankWork& rank : work) best_ns = std::max(best_ns, gathered_ns(rank, rates));
  StagedForward staged(rates);
  for (std::int32_t degree = 1; degree <= kMaxChosenDegree; ++degree) {
    std::int64_t slowest_ns = 0;
    for (auto rank = work.begin(); rank != work.end() && slowest_ns < best_ns; ++rank) {
      slowest_ns = std::max(slowest_ns, staged.ns(*rank, degree));
    }
    if (slowest_ns >= best_ns) continue;
    best = degree;
    best_ns = slowest_ns;
  }
  return best;
}

}  // namespace magi::planner
