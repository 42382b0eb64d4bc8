// SPDX-License-Identifier: Apache-2.0
// Quality and cost of placement on packed documents, a window and one causal document.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/bounds/bounds.hpp"
#include "magi/mask_builders.hpp"
#include "magi/placement.hpp"
#include "magi/plan.hpp"

namespace {

using magi::Mask;
using magi::Placement;
using magi::PlacementAlgorithm;
using magi::PlacementConfig;
using magi::PlacementCost;

struct Options {
  std::string draws = "bench/data/document_draws.json";
  std::string out;
  int repeats = 20;
};

struct Figures {
  double rows = 0.0;     // mean over masks of the mean over ranks, in shards
  double balance = 0.0;  // worst mask
  double seconds = 0.0;  // mean over masks of the fastest repeat
};

std::vector<Mask> document_masks(const nlohmann::json& draws, const std::string& total) {
  std::vector<Mask> masks;
  for (const nlohmann::json& lengths : draws.at("draws").at(total)) {
    std::vector<std::int32_t> ends = {0};
    for (const std::int32_t length : lengths) ends.push_back(ends.back() + length);
    masks.push_back(magi::mask_from_cu_seqlens(ends, ends, {.is_causal = true}));
  }
  return masks;
}

Figures measure(const std::vector<Mask>& masks, int num_ranks, const PlacementConfig& config,
                int repeats) {
  Figures figures;
  for (const Mask& mask : masks) {
    double fastest = 1e9;
    Placement placement;
    for (int i = 0; i < repeats; ++i) {
      const auto start = std::chrono::steady_clock::now();
      placement = magi::place(mask, num_ranks, config);
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      fastest = std::min(fastest, taken.count());
    }
    const PlacementCost cost = magi::placement_cost(mask, placement);
    const double rows = static_cast<double>(
        std::accumulate(cost.remote_rows.begin(), cost.remote_rows.end(), std::int64_t{0}));
    figures.rows += rows / static_cast<double>(placement.num_rows);
    figures.balance = std::max(figures.balance, cost.balance);
    figures.seconds += fastest;
  }
  const auto count = static_cast<double>(masks.size());
  figures.rows /= count;
  figures.seconds /= count;
  return figures;
}

struct Gap {
  double ratio = 0.0;    // bytes of a plan over their lower bound, mean over masks
  double seconds = 0.0;  // of the search for the bound, mean
};

Gap mean_gap(const std::vector<Mask>& masks, int num_ranks, const PlacementConfig& placement) {
  Gap gap;
  for (const Mask& mask : masks) {
    const magi::PlanConfig config{.num_ranks = num_ranks, .placement = placement};
    const magi::Plan plan = magi::make_plan(mask, config);
    const auto start = std::chrono::steady_clock::now();
    const magi::cli::PlanBounds bounds = magi::cli::find_bounds(plan);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    gap.ratio += static_cast<double>(plan.report.total_bytes) / static_cast<double>(bounds.bytes);
    gap.seconds += taken.count();
  }
  const auto count = static_cast<double>(masks.size());
  return {gap.ratio / count, gap.seconds / count};
}

std::int64_t sum(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

struct Crossing {
  double cross = 0.0;     // rows sent between nodes over those of `auto` without nodes
  double straight = 0.0;  // the same where each reader gets its own copy of a row
  double once = 0.0;      // and where a row enters a node once, with and without
  double rows = 0.0;      // remote rows over those of `auto` without nodes
  double balance = 0.0;   // worst mask
};

/// Rows that go straight from rank to rank between nodes.
std::int64_t sent_between_nodes(const Mask& mask, const Placement& placement,
                                int devices_per_node) {
  const magi::PlanConfig config{.num_ranks = placement.num_ranks};
  std::int64_t rows = 0;
  for (const magi::Transfer& t : magi::make_plan_on(mask, config, placement, placement).transfers) {
    if (t.src / devices_per_node != t.dst / devices_per_node) rows += t.num_rows;
  }
  return rows;
}

/// Rows that enter nodes once the plan knows them, means of ratios over masks.
Crossing measure_crossing(const std::vector<Mask>& masks, int num_ranks, int devices_per_node,
                          const PlacementConfig& config) {
  // Rows between nodes cost more by as much as the network of the cost model is slower.
  const magi::NodeShape nodes{devices_per_node, magi::crossing_price(magi::CostModel{})};
  Crossing figures;
  for (const Mask& mask : masks) {
    const Placement flat = magi::place(mask, num_ranks, config);
    const Placement by_node = magi::place(mask, num_ranks, config, nodes);
    const std::int64_t flat_rows = sent_between_nodes(mask, flat, devices_per_node);
    const PlacementCost flat_cost = magi::placement_cost(mask, flat);
    const PlacementCost cost = magi::placement_cost(mask, by_node);
    const auto entering =
        static_cast<double>(sum(magi::crossing_rows(mask, by_node, devices_per_node)));
    const auto ratio = [](double a, std::int64_t b) { return a / static_cast<double>(b); };
    figures.cross += ratio(entering, flat_rows);
    figures.straight +=
        ratio(static_cast<double>(sent_between_nodes(mask, by_node, devices_per_node)), flat_rows);
    figures.once += ratio(entering, sum(magi::crossing_rows(mask, flat, devices_per_node)));
    figures.rows += ratio(static_cast<double>(sum(cost.remote_rows)), sum(flat_cost.remote_rows));
    figures.balance = std::max(figures.balance, cost.balance);
  }
  const auto count = static_cast<double>(masks.size());
  figures.cross /= count;
  figures.straight /= count;
  figures.once /= count;
  figures.rows /= count;
  return figures;
}

class Report {
 public:
  void add(const std::string& name, double value, const std::string& unit) {
    rows_.push_back({{"name", name}, {"value", value}, {"unit", unit}});
    std::cout << name << ' ' << value << ' ' << unit << '\n';
  }
  void add_all(const std::string& prefix, const Figures& figures) {
    add(prefix + ".rows", figures.rows, "shards");
    add(prefix + ".balance", figures.balance, "ratio");
    add(prefix + ".ms", figures.seconds * 1e3, "ms");
  }
  bool write(const std::string& path) const {
    std::ofstream file(path);
    file << rows_.dump(2) << '\n';
    return file.good();
  }

 private:
  nlohmann::json rows_ = nlohmann::json::array();
};

PlacementConfig config_of(PlacementAlgorithm algorithm) {
  PlacementConfig config;
  config.algorithm = algorithm;
  config.chunk_size = 512;
  return config;
}

void run_all(const Options& options, Report& report) {
  std::ifstream file(options.draws);
  if (!file) throw CLI::FileError::Missing(options.draws);
  const nlohmann::json draws = nlohmann::json::parse(file);
  const std::vector<Mask> docs64k = document_masks(draws, "65536");
  const std::vector<Mask> docs1m = document_masks(draws, "1048576");
  const PlacementConfig automatic = config_of(PlacementAlgorithm::Auto);
  PlacementConfig tolerant = automatic;
  tolerant.token_tolerance = 0.5;
  report.add_all("place.docs64k.p8", measure(docs64k, 8, automatic, options.repeats));
  report.add_all(
      "place.docs64k.p8.thorough",
      measure(docs64k, 8, config_of(PlacementAlgorithm::Thorough), std::min(options.repeats, 3)));
  const Gap gap = mean_gap(docs64k, 8, config_of(PlacementAlgorithm::Thorough));
  report.add("place.docs64k.p8.gap", gap.ratio, "ratio");
  report.add("place.docs64k.p8.bound.s", gap.seconds, "s");
  report.add_all("place.docs64k.p8.tolerant", measure(docs64k, 8, tolerant, options.repeats));
  report.add_all("place.docs64k.p8.min_heap",
                 measure(docs64k, 8, config_of(PlacementAlgorithm::MinHeap), options.repeats));
  report.add_all("place.docs1m.p64", measure(docs1m, 64, automatic, std::min(options.repeats, 5)));
  report.add_all("place.docs1m.p64.min_heap",
                 measure(docs1m, 64, config_of(PlacementAlgorithm::MinHeap), 3));
  const std::vector<Mask> docs512k = document_masks(draws, "524288");
  const Crossing crossing = measure_crossing(docs512k, 64, 8, automatic);
  report.add("place.nodes.docs512k.p64.cross", crossing.cross, "ratio");
  report.add("place.nodes.docs512k.p64.cross_straight", crossing.straight, "ratio");
  report.add("place.nodes.docs512k.p64.cross_once", crossing.once, "ratio");
  report.add("place.nodes.docs512k.p64.rows", crossing.rows, "ratio");
  report.add("place.nodes.docs512k.p64.balance", crossing.balance, "ratio");
  constexpr std::int32_t kRows = 65536;
  const std::vector<Mask> window = {
      magi::mask_from_window({0, kRows}, {0, kRows}, {1023, 0}, kRows, kRows)};
  report.add_all("place.window1024.p8", measure(window, 8, automatic, options.repeats));
  const std::vector<std::int32_t> one = {0, kRows};
  const std::vector<Mask> causal = {magi::mask_from_cu_seqlens(one, one, {.is_causal = true})};
  report.add_all("place.causal.p8", measure(causal, 8, automatic, options.repeats));
  const std::vector<std::int32_t> long_one = {0, 1 << 22};
  const std::vector<Mask> causal4m = {
      magi::mask_from_cu_seqlens(long_one, long_one, {.is_causal = true})};
  report.add_all("place.causal4m.p256", measure(causal4m, 256, automatic, 5));
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Remote rows, balance and time of placements."};
  app.add_option("--draws", options.draws, "document_draws.json")->capture_default_str();
  app.add_option("--out", options.out, "JSON rows {name, value, unit} go here");
  app.add_option("--repeats", options.repeats, "timed repeats")->check(CLI::Range(1, 100000));
  try {
    app.parse(argc, argv);
    Report report;
    run_all(options, report);
    if (!options.out.empty() && !report.write(options.out)) {
      std::cerr << "cannot write " << options.out << '\n';
      return 3;
    }
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 3;
  }
  return 0;
}
