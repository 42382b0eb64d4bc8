// SPDX-License-Identifier: Apache-2.0
#include "plan/travel/fastest.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "plan/cost/timeline.hpp"
#include "plan/tables/stages.hpp"
#include "plan/tables/steps.hpp"

namespace magi::planner {
namespace {

std::int64_t predicted_ns(const Plan& plan, const PlanLoads& loads) {
  const PlanTimes times = predict_plan(plan, loads);
  return times.forward_ns + times.backward_ns;
}

/// The tables of a plan for one degree, and their predicted time.
class Built {
 public:
  /// Takes them out of the plan.
  Built(Plan& plan, PlanLoads loads, std::int64_t ns)
      : ns_(ns),
        exchanges_(std::move(plan.exchanges)),
        ranks_(std::move(plan.ranks)),
        transfers_(std::move(plan.transfers)),
        loads_(std::move(loads)) {}

  std::int64_t ns() const { return ns_; }
  PlanLoads put_into(Plan& plan) {
    plan.exchanges = std::move(exchanges_);
    plan.ranks = std::move(ranks_);
    plan.transfers = std::move(transfers_);
    return std::move(loads_);
  }

 private:
  std::int64_t ns_;
  std::vector<Exchange> exchanges_;
  std::vector<RankPlan> ranks_;
  std::vector<Transfer> transfers_;
  PlanLoads loads_;
};

/// Stages by heads of a plan that has one remote stage: rows, slices and transfers stay.
class HeadStages {
 public:
  explicit HeadStages(const Plan& plan) : exchanges_(plan.exchanges) {
    attends_.reserve(plan.ranks.size());
    for (const RankPlan& rank : plan.ranks) attends_.push_back(rank.attends);
  }

  /// Leaves the plan as a build for the degree `count` leaves the plan.
  void set(std::int32_t count, Plan& plan) const {
    const auto heads_of = [&](std::int32_t stage) {
      return share_of(plan.config.num_heads_kv, count, stage);
    };
    plan.exchanges.clear();
    for (const bool is_return : {false, true}) {
      for (std::int32_t stage = 0; stage < count; ++stage) {
        for (Exchange exchange : exchanges_) {
          if (is_returning(exchange.role) != is_return) continue;
          exchange.heads = heads_of(stage);
          exchange.stage += stage;
          plan.exchanges.push_back(exchange);
        }
      }
    }
    for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
      RankPlan& rank = plan.ranks[r];
      rank.attends.assign(attends_[r].begin(), attends_[r].begin() + 1);  // own rows, all heads
      for (std::int32_t stage = 0; stage < count; ++stage) {
        for (std::size_t a = 1; a < attends_[r].size(); ++a) {
          rank.attends.push_back(attends_[r][a]);
          rank.attends.back().heads = heads_of(stage);
        }
      }
      make_steps(plan.exchanges, rank);
    }
  }

 private:
  std::vector<Exchange> exchanges_;
  std::vector<std::vector<Attend>> attends_;  ///< [num_ranks]
};

/// The fastest of some numbers of stages by heads.
PlanLoads build_by_heads(Plan& plan, const Build& build, const std::vector<std::int32_t>& counts,
                         std::int32_t num_shares) {
  build(1);
  PlanLoads loads(plan, num_shares);
  const HeadStages stages(plan);
  std::int32_t now = 1;
  const auto set = [&](std::int32_t count) {
    if (count == now) return;
    stages.set(count, plan);
    loads.count_areas(plan);
    now = count;
  };
  std::optional<std::int64_t> best_ns;
  std::int32_t best = 1;
  for (const std::int32_t count : counts) {
    set(count);
    const std::int64_t ns = predicted_ns(plan, loads);
    if (best_ns && ns >= *best_ns) continue;
    best_ns = ns;
    best = count;
  }
  set(best);
  return loads;
}

}  // namespace

PlanLoads build_fastest(Plan& plan, const Build& build, const std::vector<std::int32_t>& degrees,
                        std::int32_t num_shares) {
  std::optional<Built> best;
  const auto keep_faster = [&](PlanLoads loads) {
    const std::int64_t ns = predicted_ns(plan, loads);
    if (!best || ns < best->ns()) best = Built(plan, std::move(loads), ns);
  };
  std::vector<std::int32_t> tried;
  std::vector<std::int32_t> counts;  // of stages by heads
  for (std::int32_t degree : degrees) {
    const bool is_of_heads = degree > 0 && is_by_heads(plan.config);
    if (is_of_heads) degree = std::min(degree, plan.config.num_heads_kv);
    if (std::ranges::find(tried, degree) != tried.end()) continue;
    tried.push_back(degree);
    if (is_of_heads) {
      counts.push_back(degree);
      continue;
    }
    build(degree);
    keep_faster(PlanLoads(plan, num_shares));
  }
  if (!counts.empty()) keep_faster(build_by_heads(plan, build, counts, num_shares));
  return best->put_into(plan);
}

PlanLoads build_asked_for(Plan& plan, const Build& build,
                          const std::vector<std::int32_t>& otherwise, std::int32_t num_shares) {
  if (!plan.config.overlap_degree) return build_fastest(plan, build, otherwise, num_shares);
  build(*plan.config.overlap_degree);
  return PlanLoads(plan, num_shares);
}

}  // namespace magi::planner
