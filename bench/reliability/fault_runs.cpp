// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/random.hpp"
#include "magi/error.hpp"
#include "trials.hpp"

// Faults of ranks and long runs, counted.
// fault_runs [--transport shm|nvlink] [--ranks N] [--seed S] [--kills N] [--stops N] [--absent N]
//            [--plans N] [--memory N] [--steps N] [--threads 1] [--out FILE]
// Without counts: 100 kills, 50 stops, 20 ranks that do not come, 20 other plans, 10,000 steps.
// Over nvlink rank r has GPU r (with fewer GPUs nothing is run); --threads: ranks of a soak are
// threads that share GPU 0.
namespace {

using magi::reliability::Fault;
using magi::reliability::Transport;
using magi::reliability::Trial;

struct Options {
  Transport transport = Transport::Shm;
  std::int32_t ranks = 4;
  std::uint64_t seed = 20261122;
  std::int64_t counts[5] = {0, 0, 0, 0, 0};  ///< by Fault
  std::int64_t steps = 0;
  bool are_threads = false;
  std::string out;
};

constexpr const char* kCountNames[] = {"--kills", "--stops", "--absent", "--plans", "--memory"};
constexpr const char* kUnits[] = {"kills", "stops", "ranks", "plans", "failures"};

Options parse(int argc, char** argv) {
  Options options;
  bool has_counts = false;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 >= argc) throw magi::InvalidArgument(name + " has no value; allowed: one");
    const std::string value = argv[i + 1];
    const auto* count = std::find(std::begin(kCountNames), std::end(kCountNames), name);
    if (count != std::end(kCountNames)) {
      options.counts[count - kCountNames] = std::stoll(value);
      has_counts = true;
    } else if (name == "--steps") {
      options.steps = std::stoll(value);
      has_counts = true;
    } else if (name == "--transport" && (value == "shm" || value == "nvlink")) {
      options.transport = value == "shm" ? Transport::Shm : Transport::Nvlink;
    } else if (name == "--ranks") {
      options.ranks = std::stoi(value);
    } else if (name == "--seed") {
      options.seed = std::stoull(value);
    } else if (name == "--threads") {
      options.are_threads = value == "1";
    } else if (name == "--out") {
      options.out = value;
    } else {
      throw magi::InvalidArgument(name + " is " + value + "; allowed: see the head of this file");
    }
  }
  if (options.ranks < 2 || options.ranks > magi::reliability::kMostRanks) {
    throw magi::InvalidArgument("--ranks is " + std::to_string(options.ranks) +
                                "; allowed: 2 to 8");
  }
  if (options.counts[4] > 0 && options.transport == Transport::Shm) {
    throw magi::InvalidArgument("--memory is of GPUs; allowed: with --transport nvlink");
  }
  if (has_counts) return options;
  std::copy_n(std::initializer_list<std::int64_t>{100, 50, 20, 20, 0}.begin(), 5, options.counts);
  options.steps = 10'000;
  return options;
}

/// Trials that held.
std::int64_t count_trials(const Options& options, Fault fault, std::int64_t count) {
  std::int64_t held = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    magi::RandomStream random(options.seed + static_cast<std::uint64_t>(i) * 8 +
                              static_cast<std::uint64_t>(fault));
    const Trial trial{.name = "trial-" + std::to_string(getpid()) + "-" +
                              std::to_string(static_cast<int>(fault)) + "-" + std::to_string(i),
                      .seed = random(),
                      .fault = fault,
                      .faulty_rank = random.between(0, options.ranks - 1),
                      .fault_step = random.between(1, 12),
                      .transport = options.transport,
                      .num_ranks = options.ranks};
    const std::string trouble = magi::reliability::run_trial(trial);
    held += trouble.empty() ? 1 : 0;
    if (!trouble.empty()) {
      std::cerr << "fault_runs: " << magi::reliability::fault_name(fault) << ", trial " << i
                << " of seed " << options.seed << ": " << trouble << std::endl;
    }
    if ((i + 1) % 10 == 0) {
      std::cerr << "  " << magi::reliability::fault_name(fault) << ": " << held << " of " << i + 1
                << " held\n";
    }
  }
  return held;
}

struct Row {
  std::string name;
  std::int64_t value;
  std::string unit;
};

std::string name_of(Fault fault, const Options& options) {
  const std::string transport = options.transport == Transport::Shm ? "shm" : "nvlink";
  const bool is_shm = options.transport == Transport::Shm;
  switch (fault) {
    case Fault::Killed:
      return "reliability.kills." + transport;
    case Fault::Stopped:
      return is_shm ? "reliability.stops" : "reliability.stops." + transport;
    case Fault::Absent:
      return "reliability.absent." + transport;
    case Fault::OtherPlan:
      return "reliability.other_plans." + transport;
    default:
      return "reliability.out_of_memory." + transport;
  }
}

/// By device files, without a call of CUDA.
bool has_gpus(const Options& options) {
  if (options.transport == Transport::Shm) return true;
  const std::int32_t last = options.are_threads ? 0 : options.ranks - 1;
  return std::filesystem::exists("/dev/nvidia" + std::to_string(last));
}

int run(const Options& options) {
  if (!has_gpus(options)) {
    std::cerr << "fault_runs: not run: a rank has no GPU\n";
    return 0;
  }
  std::vector<Row> rows;
  bool is_well = true;
  for (int f = 0; f < 5; ++f) {
    if (options.counts[f] == 0) continue;
    const auto fault = static_cast<Fault>(f);
    const std::int64_t held = count_trials(options, fault, options.counts[f]);
    rows.push_back({name_of(fault, options), held, kUnits[f]});
    is_well = is_well && held == options.counts[f];
  }
  if (options.steps > 0) {
    const auto outcome = magi::reliability::run_soak({.transport = options.transport,
                                                      .are_threads = options.are_threads,
                                                      .num_ranks = options.ranks,
                                                      .seed = options.seed,
                                                      .count = options.steps});
    if (!outcome.trouble.empty()) std::cerr << "fault_runs: soak: " << outcome.trouble << '\n';
    const std::string suffix = options.transport == Transport::Shm ? "" : ".nvlink";
    const bool is_whole = outcome.steps == options.steps && outcome.trouble.empty();
    rows.push_back({"reliability.soak.hangs" + suffix, is_whole ? 0 : 1, "hangs"});
    rows.push_back({"reliability.soak.steps" + suffix, outcome.steps, "steps"});
    rows.push_back({"reliability.soak.growth" + suffix, outcome.growth_kib, "KiB"});
    is_well = is_well && is_whole;
  }
  nlohmann::json list = nlohmann::json::array();
  for (const Row& row : rows) {
    list.push_back({{"name", row.name}, {"value", row.value}, {"unit", row.unit}});
  }
  if (options.out.empty()) {
    std::cout << list.dump(1) << '\n';
  } else {
    std::ofstream(options.out) << list.dump(1) << '\n';
  }
  return is_well ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  // What is loaded into GPUs is there before their free memory is looked at.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  try {
    return run(parse(argc, argv));
  } catch (const std::exception& error) {
    std::cerr << "fault_runs: " << error.what() << '\n';
    return 2;
  }
}
