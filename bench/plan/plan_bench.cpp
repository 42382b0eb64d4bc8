// SPDX-License-Identifier: Apache-2.0
#include <time.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/document_bench.hpp"
#include "magi/plan.hpp"

// CPU time of whole plans, which one thread makes: packed causal documents, also over nodes and a
// slow network, and one causal document. What else the machine does counts as far as it shares
// caches and clocks. And predicted steps: over nodes over those of other placements, and under the
// default bound of exchange memory, with this memory, over those of no bound.
// plan_bench [--out FILE] [--draws bench/data/document_draws.json]
namespace {

using magi::Mask;
using magi::PlanConfig;
using magi::bench::packed_causal;

/// CPU time of this thread so far, in milliseconds.
double thread_ms() {
  timespec now{};
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) != 0) {
    throw std::runtime_error("this system does not count the CPU time of a thread");
  }
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

/// Least CPU time of `repeats` plans, in milliseconds.
double least_ms(const Mask& mask, const PlanConfig& config, int repeats) {
  double least = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const double start = thread_ms();
    const magi::Plan plan = magi::make_plan(mask, config);
    const double took = thread_ms() - start;
    if (plan.digest != 0) least = std::min(least, took);
  }
  return least;
}

PlanConfig config_of(std::int32_t num_ranks, std::int32_t chunk_size) {
  PlanConfig config;
  config.num_ranks = num_ranks;
  config.num_heads_q = 64;
  config.num_heads_kv = 8;
  if (chunk_size > 0) config.placement.chunk_size = chunk_size;
  return config;
}

double mean_over_draws(const nlohmann::json& draws, const PlanConfig& config, int repeats) {
  double total = 0.0;
  for (const auto& draw : draws) {
    total += least_ms(packed_causal(draw.get<std::vector<std::int32_t>>()), config, repeats);
  }
  return total / static_cast<double>(draws.size());
}

double step_seconds(const Mask& mask, const PlanConfig& config) {
  const magi::PlanReport report = magi::make_plan(mask, config).report;
  return report.forward_seconds + report.backward_seconds;
}

/// The predicted step over the least of three placements that a caller can name, mean over draws.
double over_named(const nlohmann::json& draws, const PlanConfig& config) {
  using enum magi::PlacementAlgorithm;
  double total = 0.0;
  for (const auto& draw : draws) {
    const Mask mask = packed_causal(draw.get<std::vector<std::int32_t>>());
    double least = 1e30;
    for (const auto algorithm : {Thorough, Zigzag, SequentialSelect}) {
      PlanConfig named = config;
      named.placement.algorithm = algorithm;
      least = std::min(least, step_seconds(mask, named));
    }
    total += step_seconds(mask, config) / least;
  }
  return total / static_cast<double>(draws.size());
}

/// The worst of nodes of 8 ranks and of one node, under the default bound: GiB of exchange memory
/// of the rank that holds most, and the predicted step over that of no bound.
std::pair<double, double> bounded_memory(const Mask& mask, PlanConfig config) {
  double gib = 0.0, over_unbounded = 0.0;
  for (const std::int32_t node : {0, 8}) {
    config.devices_per_node = node;
    config.max_exchange_bytes.reset();
    const magi::PlanReport bounded = magi::make_plan(mask, config).report;
    const double bounded_seconds = bounded.forward_seconds + bounded.backward_seconds;
    config.max_exchange_bytes = 0;
    gib = std::max(gib, static_cast<double>(std::ranges::max(bounded.rank_memory)) * 0x1p-30);
    over_unbounded = std::max(over_unbounded, bounded_seconds / step_seconds(mask, config));
  }
  return {gib, over_unbounded};
}

nlohmann::json run(const magi::bench::Options& options) {
  const auto draws = magi::bench::read_draws(options);
  auto rows = nlohmann::json::array();
  const auto add = [&](const char* name, double value, const char* unit = "ms") {
    rows.push_back({{"name", name}, {"value", value}, {"unit", unit}});
  };
  add("plan.docs64k.p8.ms", mean_over_draws(draws.at("65536"), config_of(8, 512), 400));
  add("plan.docs1m.p64.ms", mean_over_draws(draws.at("1048576"), config_of(64, 512), 40));
  add("plan.docs1m.p1024.ms", mean_over_draws(draws.at("1048576"), config_of(1024, 512), 10));
  add("plan.causal4m.p256.ms", least_ms(packed_causal({4194304}), config_of(256, 0), 30));
  PlanConfig nodes = config_of(256, 0);
  nodes.devices_per_node = 8;
  add("plan.nodes.p256.ms", mean_over_draws(draws.at("1048576"), nodes, 5));
  add("plan.nodes.p256.time", over_named(draws.at("1048576"), nodes), "ratio");
  // Rows between nodes cost 20 times others.
  PlanConfig slow = nodes;
  slow.cost.network_bytes_per_second = slow.cost.bytes_per_second / 20;
  add("plan.slow_network.p256.ms", mean_over_draws(draws.at("1048576"), slow, 5));
  add("plan.slow_network.p256.time", over_named(draws.at("1048576"), slow), "ratio");
  PlanConfig config = config_of(256, 0);
  config.num_heads_q = 32;
  const auto [gib, over_unbounded] = bounded_memory(packed_causal({4194304}), config);
  add("plan.memory.4m.p256.gib", gib, "GiB");
  add("plan.memory.4m.p256.time", over_unbounded, "ratio");
  return rows;
}

}  // namespace

int main(int argc, char** argv) { return magi::bench::run_bench("plan_bench", argc, argv, run); }
