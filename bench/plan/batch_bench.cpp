// SPDX-License-Identifier: Apache-2.0
#include <time.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "bench/document_bench.hpp"
#include "bench/plan/batch_draws.hpp"
#include "bench/plan/batch_schemes.hpp"

// Plans of 1,000 batches of 512 samples, drawn from bench/data/document_lengths.csv, for 64 ranks
// in nodes of 8 with memory for 16,384 rows each, and what other schemes take for the first of
// them. batch_bench [--out FILE] [--draws bench/data/document_draws.json]
namespace magi::bench {
namespace {

constexpr int kBatches = 1000;
constexpr int kCompared = 200;
constexpr int kSamples = 512;
const BatchConfig kConfig{.num_ranks = 64, .rows_per_rank = 16384, .devices_per_node = 8};

/// CPU time of this thread so far, in milliseconds.
double thread_ms() {
  timespec now{};
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) != 0) {
    throw std::runtime_error("this system does not count the CPU time of a thread");
  }
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

nlohmann::json run(const Options& options) {
  const std::vector<Bin> bins = read_bins(options);
  RandomStream random(1);
  const std::array<std::string, 4> schemes{"fixed", "balanced", "powers", "tuned_powers"};
  std::array<double, 4> over{};
  double gap = 0.0;
  double ms = 0.0;
  for (int i = 0; i < kBatches; ++i) {
    const std::vector<BatchSample> samples = draw_samples(bins, kSamples, random);
    const double start = thread_ms();
    const BatchPlan plan = plan_batch(samples, kConfig);
    ms += thread_ms() - start;
    gap += plan.report.gap();
    if (i >= kCompared) continue;
    const auto compared = compare_batch(samples, kConfig);
    for (std::size_t s = 0; s < schemes.size(); ++s) {
      const auto found = std::ranges::find(compared, schemes[s], &BatchFigures::scheme);
      over[s] += found->seconds / compared.front().seconds;
    }
  }
  auto rows = nlohmann::json::array();
  const auto add = [&](const std::string& name, double value, const char* unit) {
    rows.push_back({{"name", name}, {"value", value}, {"unit", unit}});
  };
  add("batch.gap", gap / kBatches, "ratio");
  add("batch.ms", ms / kBatches, "ms");
  for (std::size_t s = 0; s < schemes.size(); ++s) {
    add("batch.over_" + schemes[s], over[s] / kCompared, "ratio");
  }
  return rows;
}

}  // namespace
}  // namespace magi::bench

int main(int argc, char** argv) {
  return magi::bench::run_bench("batch_bench", argc, argv, magi::bench::run);
}
