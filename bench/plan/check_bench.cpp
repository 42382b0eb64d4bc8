// SPDX-License-Identifier: Apache-2.0
// Time of checking plans, one core: packed causal documents. check_bench [--out FILE] [--draws
// FILE]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "magi/mask_builders.hpp"
#include "magi/plan.hpp"
#include "plan/check/plan_mutants.hpp"

namespace {

using magi::Plan;

Plan documents_plan(const nlohmann::json& lengths, std::int32_t num_ranks) {
  std::vector<std::int32_t> ends = {0};
  for (const std::int32_t length : lengths) ends.push_back(ends.back() + length);
  // With a remote stage own and received rows are attended to apart: more slices to compare.
  magi::PlanConfig config{
      .num_ranks = num_ranks, .num_heads_q = 64, .num_heads_kv = 8, .overlap_degree = 1};
  config.placement.chunk_size = 512;
  return magi::make_plan(magi::mask_from_cu_seqlens(ends, ends, {.is_causal = true}), config);
}

/// Least time of a check over the slices of all ranks. [ms per 1,000 slices]
double check_ms(const Plan& plan, int repeats) {
  using Clock = std::chrono::steady_clock;
  std::size_t num_slices = 0;
  for (const magi::RankPlan& rank : plan.ranks) num_slices += rank.slices.size();
  double least = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const auto start = Clock::now();
    const auto problems = magi::check_plan(plan);
    const std::chrono::duration<double, std::milli> took = Clock::now() - start;
    if (!problems.empty()) throw std::runtime_error("a plan is refused: " + problems.front());
    least = std::min(least, took.count());
  }
  return least * 1000.0 / static_cast<double>(num_slices);
}

double worst_check_ms(const nlohmann::json& draws, std::int32_t num_ranks, int repeats) {
  double worst = 0.0;
  for (const nlohmann::json& draw : draws) {
    worst = std::max(worst, check_ms(documents_plan(draw, num_ranks), repeats));
  }
  return worst;
}

struct Options {
  std::string draws = "bench/data/document_draws.json";
  std::string out;
  std::int64_t num_mutants = 100'000;
  std::uint64_t seed = 1;
};

magi::testing::MutantCounts judge(const Options& options) {
  const auto counts = magi::testing::judge_mutants(options.seed, options.num_mutants);
  std::cout << "seed " << options.seed << ": " << counts.num_refused << " of " << counts.num_wrong
            << " wrong mutants are refused, " << counts.num_accepted << " of " << counts.num_right
            << " right ones accepted\n";
  if (!counts.first_disagreement.empty()) std::cout << counts.first_disagreement << '\n';
  return counts;
}

double share(std::int64_t part, std::int64_t all) {
  return static_cast<double>(part) / static_cast<double>(all);
}

void run(const Options& options) {
  std::ifstream file(options.draws);
  if (!file) throw std::runtime_error("cannot read " + options.draws);
  const nlohmann::json draws = nlohmann::json::parse(file).at("draws");
  const double small = worst_check_ms(draws.at("65536"), 8, 40);
  const double large = worst_check_ms(draws.at("1048576"), 64, 5);
  nlohmann::json rows = nlohmann::json::array();
  const auto add = [&](const char* name, double value, const char* unit) {
    rows.push_back({{"name", name}, {"value", value}, {"unit", unit}});
    std::cout << name << ' ' << value << ' ' << unit << '\n';
  };
  add("check.ms_per_1000_slices", std::max(small, large), "ms");
  add("check.docs64k.p8.ms_per_1000_slices", small, "ms");
  add("check.docs1m.p64.ms_per_1000_slices", large, "ms");
  const auto counts = judge(options);
  add("check.mutants_refused", share(counts.num_refused, counts.num_wrong), "share");
  add("check.mutants_accepted", share(counts.num_accepted, counts.num_right), "share");
  if (options.out.empty()) return;
  std::ofstream out(options.out);
  out << rows.dump(2) << '\n';
  if (!out.good()) throw std::runtime_error("cannot write " + options.out);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Time and verdicts of checking plans."};
  app.add_option("--draws", options.draws, "document_draws.json")->capture_default_str();
  app.add_option("--out", options.out, "JSON rows {name, value, unit} go here");
  app.add_option("--mutants", options.num_mutants, "mutants to judge")
      ->check(CLI::Range(100, 100'000'000));
  app.add_option("--seed", options.seed, "of the first mutant");
  try {
    app.parse(argc, argv);
    run(options);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::cerr << "check_bench: " << error.what() << '\n';
    return 3;
  }
  return 0;
}
