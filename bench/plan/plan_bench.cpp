// SPDX-License-Identifier: Apache-2.0
#include <time.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "magi/plan.hpp"

// CPU time of whole plans, which one thread makes: packed causal documents and one causal document.
// What else the machine does counts as far as it shares caches and clocks.
// plan_bench [--out FILE] [--draws bench/data/document_draws.json]
namespace {

using magi::Mask;
using magi::PlanConfig;

Mask packed_causal(const std::vector<std::int32_t>& lengths) {
  Mask mask;
  for (const std::int32_t length : lengths) {
    const magi::Range rows{mask.rows_q, mask.rows_q + length};
    mask.slices.push_back(magi::band_slice(rows, rows, magi::MaskType::Causal));
    mask.rows_q = mask.rows_k = rows.end;
  }
  return mask;
}

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

struct Options {
  std::string out;
  std::string draws = "bench/data/document_draws.json";
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    const bool is_known = name == "--out" || name == "--draws";
    if (!is_known || i + 1 == argc) {
      throw std::runtime_error("option " + name + "; allowed: --out FILE, --draws FILE");
    }
    (name == "--out" ? options.out : options.draws) = argv[i + 1];
  }
  return options;
}

double mean_over_draws(const nlohmann::json& draws, const PlanConfig& config, int repeats) {
  double total = 0.0;
  for (const auto& draw : draws) {
    total += least_ms(packed_causal(draw.get<std::vector<std::int32_t>>()), config, repeats);
  }
  return total / static_cast<double>(draws.size());
}

void run(const Options& options) {
  std::ifstream file(options.draws);
  if (!file) throw std::runtime_error("cannot read " + options.draws);
  const auto draws = nlohmann::json::parse(file).at("draws");
  auto rows = nlohmann::json::array();
  const auto add = [&](const char* name, double ms) {
    rows.push_back({{"name", name}, {"value", ms}, {"unit", "ms"}});
  };
  add("plan.docs64k.p8.ms", mean_over_draws(draws.at("65536"), config_of(8, 512), 400));
  add("plan.docs1m.p64.ms", mean_over_draws(draws.at("1048576"), config_of(64, 512), 40));
  add("plan.docs1m.p1024.ms", mean_over_draws(draws.at("1048576"), config_of(1024, 512), 10));
  add("plan.causal4m.p256.ms", least_ms(packed_causal({4194304}), config_of(256, 0), 30));
  const std::string text = rows.dump(1) + "\n";
  if (options.out.empty()) {
    std::cout << text;
  } else if (!(std::ofstream(options.out) << text)) {
    throw std::runtime_error("cannot write " + options.out);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "plan_bench: " << error.what() << '\n';
    return 1;
  }
}
