// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <iostream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "commands.hpp"
#include "common/files.hpp"
#include "common/flags.hpp"
#include "draw/numbers.hpp"
#include "kernels/cpu/attention.hpp"
#include "verify/checks.hpp"

namespace magi::cli {
namespace {

constexpr int kMostShrinkTries = 400;

struct VerifyFlags {
  std::int32_t cases = 200;
  std::int32_t first = 0;
  std::optional<std::int32_t> threads;
  std::optional<std::uint64_t> seed;
  std::string replay;
  std::vector<const CLI::Option*> run_options;  ///< of a run of random cases
  bool is_json = false;
};

/// Case `index` of a run: each has a stream of its own, so that threads do not change what is
/// drawn.
VerifyCase case_of(std::uint64_t seed, std::int32_t index) {
  RandomStream streams(seed ^ (0x9e3779b97f4a7c15u * (static_cast<std::uint64_t>(index) + 1)));
  RandomStream random(streams());
  return random_case(random);
}

/// Tells on standard error how far the run is, about every two seconds.
class Progress {
 public:
  explicit Progress(std::int32_t total) : total_(total) {}
  void add_one() {
    const std::lock_guard lock(mutex_);
    ++done_;
    const auto now = std::chrono::steady_clock::now();
    if (now - last_time_ < std::chrono::seconds(2) && done_ != total_) return;
    last_time_ = now;
    std::cerr << "  " << done_ << " of " << total_ << " cases" << std::endl;
  }

 private:
  std::mutex mutex_;
  std::int32_t total_;
  std::int32_t done_ = 0;
  std::chrono::steady_clock::time_point last_time_ = std::chrono::steady_clock::now();
};

struct Failure {
  std::int32_t index = 0;
  VerifyCase verify_case;
};

/// Runs workers and waits for them. Where one cannot start, the others end after their case.
template <typename Work>
void run_workers(std::int32_t num_workers, const Work& work, std::atomic<bool>& is_stopping) {
  std::vector<std::jthread> workers;
  for (std::int32_t worker = 0; worker < num_workers; ++worker) {
    try {
      workers.emplace_back(work);
    } catch (const std::system_error& error) {
      is_stopping = true;
      throw EnvironmentUnfit("thread " + std::to_string(worker + 1) + " of " +
                             std::to_string(num_workers) + " cannot start: " + error.what());
    }
  }
}

/// The failing case of the lowest index that the workers meet; workers stop after the first.
std::optional<Failure> run_cases(const VerifyFlags& flags, std::uint64_t seed) {
  std::atomic<std::int32_t> next = flags.first;
  std::atomic<bool> is_stopping = false;
  std::mutex mutex;
  std::optional<Failure> failure;
  std::exception_ptr unfit;  // out of memory, not a case that fails
  Progress progress(flags.cases);
  const std::int32_t end = flags.first + flags.cases;
  const auto work = [&] {
    cpu::set_num_threads(1);
    for (std::int32_t index = next++; index < end && !is_stopping; index = next++) {
      try {
        const VerifyCase drawn = case_of(seed, index);
        if (!verify(drawn).empty()) {
          is_stopping = true;
          const std::lock_guard lock(mutex);
          if (!failure || index < failure->index) failure = Failure{index, drawn};
        }
        progress.add_one();
      } catch (...) {
        is_stopping = true;
        const std::lock_guard lock(mutex);
        unfit = std::current_exception();
      }
    }
  };
  const auto cores = static_cast<std::int32_t>(std::thread::hardware_concurrency());
  const std::int32_t num_workers = flags.threads.value_or(std::max(1, cores));
  run_workers(num_workers, work, is_stopping);
  if (unfit) std::rethrow_exception(unfit);
  return failure;
}

void report_findings(const Findings& findings) {
  for (const std::string& finding : findings) std::cerr << "magi: " << finding << '\n';
}

Exit run_replay(const VerifyFlags& flags) {
  refuse_given(flags.run_options, "given with --replay, which runs one case", "one of the two");
  const Findings findings = verify(case_from_json(read_file("--replay", flags.replay)));
  report_findings(findings);
  if (flags.is_json) {
    std::cout << nlohmann::json{{"holds", findings.empty()}, {"findings", findings}}.dump() << '\n';
  } else if (findings.empty()) {
    std::cout << "the case holds\n";
  }
  return findings.empty() ? Exit::Ok : Exit::CheckFailed;
}

Exit run_verify(const VerifyFlags& flags) {
  if (!flags.replay.empty()) return run_replay(flags);
  const std::uint64_t seed = flags.seed ? *flags.seed : std::random_device{}();
  std::cerr << "  seed " << seed << std::endl;
  const auto start = std::chrono::steady_clock::now();
  const std::optional<Failure> failure = run_cases(flags, seed);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  if (failure) {
    report_findings(verify(failure->verify_case));
    const VerifyCase smaller = shrink_case(failure->verify_case, kMostShrinkTries);
    std::cerr << "magi: case " << failure->index << " of seed " << seed
              << " fails; made smaller, to be run again with --replay:\n";
    report_findings(verify(smaller));
    std::cout << case_to_json(smaller);
    return Exit::CheckFailed;
  }
  if (flags.is_json) {
    std::cout << "{\"cases\": " << flags.cases << ", \"seed\": " << seed
              << ", \"seconds\": " << elapsed.count() << ", \"holds\": true}\n";
  } else {
    std::cout << draw::grouped(flags.cases) << " cases hold (seed " << seed << ", "
              << draw::seconds_text(elapsed.count()) << ")\n";
  }
  return Exit::Ok;
}

void add_run_flags(CLI::App& app, VerifyFlags& flags) {
  add_int(app, "--cases", flags.cases, {1, 100'000'000}, "random cases");
  add_int(app, "--first", flags.first, {0, 1'000'000'000}, "number of the first case");
  add_int(app, "--threads", flags.threads, {1, 1024}, "cases at a time (default: the cores)");
  app.add_option_function<std::string>(
         "--seed",
         [&flags](const std::string& text) {
           flags.seed = static_cast<std::uint64_t>(
               parse_int("--seed", text, {0, std::numeric_limits<std::int64_t>::max()}));
         },
         "seed of the run (default: drawn and printed)")
      ->type_name("S");
}

}  // namespace

Command add_verify_command(CLI::App& parent) {
  CLI::App* app = parent.add_subcommand(
      "verify", "Check masks, plans, transfers and attention on random cases against float64");
  app->footer("Example:\n  magi verify --cases 100 --seed 7");
  const auto flags = std::make_shared<VerifyFlags>();
  flags->run_options = options_of(*app, [&] { add_run_flags(*app, *flags); });
  add_path(*app, "--replay", "FILE", flags->replay, "run one failing case again");
  app->add_flag("--json", flags->is_json, "print the outcome as JSON");
  return {.app = app, .run = [flags] { return run_verify(*flags); }};
}

}  // namespace magi::cli
