// SPDX-License-Identifier: Apache-2.0
#include "simulate/simulate.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.hpp"
#include "plan/config.hpp"
#include "simulate/strategies.hpp"

namespace magi::simulate {
namespace {

using Baseline = std::pair<std::string, std::function<Figures(const Problem&)>>;

const std::vector<Baseline>& baselines() {
  static const std::vector<Baseline> table = {
      {"ring", [](const Problem& p) { return simulate_ring(p, RowOrder::Contiguous); }},
      {"zigzag_ring", [](const Problem& p) { return simulate_ring(p, RowOrder::Zigzag); }},
      {"all_gather", simulate_all_gather},
      {"ulysses", simulate_ulysses},
      {"usp", simulate_usp}};
  return table;
}

using Moving = std::pair<std::string, WorkMode>;

const std::vector<Moving>& moving() {
  static const std::vector<Moving> table = {{"queries", WorkMode::Queries},
                                            {"auto_work", WorkMode::Auto}};
  return table;
}

/// The plan with the placement `auto` in which queries may travel.
Figures simulate_moving(const Problem& problem, WorkMode work) {
  const std::int32_t most = planner::kMostRanksOfMoves;
  if (problem.config.num_ranks > most) {
    return {.refusal = "it is planned for at most " + std::to_string(most) + " ranks, not " +
                       std::to_string(problem.config.num_ranks)};
  }
  Problem asked{problem.mask, problem.config, problem.cluster, problem.ulysses_degree};
  asked.config.work = work;
  return simulate_plan(asked, PlacementAlgorithm::Auto);
}

Figures simulate_named(const Problem& problem, const std::string& strategy) {
  if (const auto found = std::ranges::find(baselines(), strategy, &Baseline::first);
      found != baselines().end()) {
    return found->second(problem);
  }
  if (const auto found = std::ranges::find(moving(), strategy, &Moving::first);
      found != moving().end()) {
    return simulate_moving(problem, found->second);
  }
  return simulate_plan(problem, placement_from_name(strategy));
}

constexpr auto kLastAlgorithm = PlacementAlgorithm::SortedSequentialSelect;

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
  for (std::int32_t i = 0; i <= static_cast<std::int32_t>(kLastAlgorithm); ++i) {
    names.emplace_back(placement_name(static_cast<PlacementAlgorithm>(i)));
  }
  return names;
}

std::vector<std::string> moving_strategies() {
  std::vector<std::string> names;
  for (const auto& [name, work] : moving()) names.push_back(name);
  return names;
}

std::vector<std::string> baseline_strategies() {
  std::vector<std::string> names;
  for (const auto& [name, run] : baselines()) names.push_back(name);
  return names;
}

Figures simulate(const Problem& problem, const std::string& strategy) {
  planner::validate_config(problem.config);
  planner::validate_sizes(problem.mask, problem.config);
  validate(problem.mask);
  if (problem.mask.rows_q != problem.mask.rows_k || problem.mask.rows_q == 0) {
    throw invalid("the mask",
                  std::to_string(problem.mask.rows_q) + " queries and " +
                      std::to_string(problem.mask.rows_k) + " keys",
                  "as many queries as keys, at least one");
  }
  Figures figures = simulate_named(problem, strategy);
  figures.strategy = strategy;
  return figures;
}

}  // namespace magi::simulate
