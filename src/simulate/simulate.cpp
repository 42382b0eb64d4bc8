// SPDX-License-Identifier: Apache-2.0
#include "simulate/simulate.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "plan/value/config.hpp"
#include "simulate/strategies.hpp"

namespace magi::simulate {
namespace {

using Strategy = std::pair<std::string, Figures (*)(const Problem&)>;

const std::vector<Strategy>& baselines() {
  static const std::vector<Strategy> table = {
      {"ring", [](const Problem& p) { return simulate_ring(p, RowOrder::Contiguous); }},
      {"zigzag_ring", [](const Problem& p) { return simulate_ring(p, RowOrder::Zigzag); }},
      {"all_gather", simulate_all_gather},
      {"ulysses", simulate_ulysses},
      {"usp", simulate_usp}};
  return table;
}

/// The plan with the placement `auto` for a way of sharing out work.
Figures simulate_work(const Problem& problem, WorkMode work, std::int32_t head_shares = 0) {
  Problem asked = problem;
  asked.config.work = work;
  asked.config.head_shares = head_shares;
  return simulate_plan(asked, PlacementAlgorithm::Auto);
}

Figures simulate_queries(const Problem& problem) {
  const std::int32_t most = planner::kMostRanksMovingQueries;
  if (problem.config.num_ranks > most) {
    return {.refusal = "it is planned for at most " + std::to_string(most) + " ranks, not " +
                       std::to_string(problem.config.num_ranks)};
  }
  return simulate_work(problem, WorkMode::Queries);
}

/// The numbers of shares that the heads may be in, above one, ascending.
std::vector<std::int32_t> head_shares(const Problem& problem) {
  PlanConfig config = problem.config;
  config.head_shares = 0;
  return planner::possible_shares(config);
}

std::string refusal_of_shares(const PlanConfig& config, const char* lacking) {
  return std::to_string(config.num_heads_kv) + " kv heads and " + std::to_string(config.num_ranks) +
         " ranks have no common divisor " + lacking;
}

/// Heads in as many shares as there may be.
Figures simulate_heads(const Problem& problem) {
  const std::vector<std::int32_t> shares = head_shares(problem);
  if (shares.empty()) return {.refusal = refusal_of_shares(problem.config, "above 1")};
  return simulate_work(problem, WorkMode::Heads, shares.back());
}

/// Heads in fewer shares, so that tokens are shared out too; the number that is fastest.
Figures simulate_mixed(const Problem& problem) {
  std::vector<std::int32_t> shares = head_shares(problem);
  if (shares.size() < 2) {
    return {.refusal = refusal_of_shares(problem.config, "between 1 and the largest")};
  }
  shares.pop_back();
  std::optional<Figures> fastest;
  for (const std::int32_t count : shares) {
    Figures figures = simulate_work(problem, WorkMode::Heads, count);
    if (!fastest || figures.step_seconds() < fastest->step_seconds()) fastest = std::move(figures);
  }
  return *std::move(fastest);
}

const std::vector<Strategy>& moving() {
  static const std::vector<Strategy> table = {
      {"queries", simulate_queries},
      {"heads", simulate_heads},
      {"mixed", simulate_mixed},
      {"auto_work", [](const Problem& p) { return simulate_work(p, WorkMode::Auto); }},
      {"latents", simulate_latents}};
  return table;
}

std::vector<std::string> names_of(const std::vector<Strategy>& table) {
  std::vector<std::string> names;
  for (const auto& [name, run] : table) names.push_back(name);
  return names;
}

Figures simulate_named(const Problem& problem, const std::string& strategy) {
  for (const std::vector<Strategy>* table : {&baselines(), &moving()}) {
    const auto found = std::ranges::find(*table, strategy, &Strategy::first);
    if (found != table->end()) return found->second(problem);
  }
  return simulate_plan(problem, placement_from_name(strategy));
}

}  // namespace

double Figures::balance() const {
  double total = 0.0;
  double most = 0.0;
  for (const double work : rank_work) {
    total += work;
    most = std::max(most, work);
  }
  return total == 0.0 ? 1.0 : most * static_cast<double>(rank_work.size()) / total;
}

std::vector<std::string> placement_strategies() {
  std::vector<std::string> names;
  for (std::int32_t i = 0; i < kNumPlacementAlgorithms; ++i) {
    names.emplace_back(placement_name(static_cast<PlacementAlgorithm>(i)));
  }
  return names;
}

std::vector<std::string> moving_strategies() { return names_of(moving()); }

std::vector<std::string> baseline_strategies() { return names_of(baselines()); }

Figures simulate(const Problem& problem, const std::string& strategy) {
  planner::validate_config(problem.config);
  planner::validate_sizes(problem.mask, problem.config);
  if (problem.mask.rows_q != problem.mask.rows_k) {
    throw invalid("the mask",
                  std::to_string(problem.mask.rows_q) + " queries and " +
                      std::to_string(problem.mask.rows_k) + " keys",
                  "as many queries as keys");
  }
  Figures figures = simulate_named(problem, strategy);
  figures.strategy = strategy;
  return figures;
}

}  // namespace magi::simulate
