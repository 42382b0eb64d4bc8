// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <tuple>

#include "base/check.hpp"
#include "base/env.hpp"
#include "bench/distributed/dist_bench.hpp"
#include "commands.hpp"
#include "common/files.hpp"
#include "common/flags.hpp"
#include "common/masks.hpp"
#include "common/values.hpp"

namespace magi::cli {
namespace {

constexpr std::int32_t kKilo = 1024;
constexpr std::int32_t kMostTokens = 1024 * kKilo;
constexpr std::int32_t kMostRanks = 64;

struct DistFlags {
  DistBenchOptions options{.masks = dist_mask_names(),
                           .tokens = {8 * kKilo, 16 * kKilo, 32 * kKilo}};
  bool is_forward = false;
  bool is_backward = false;
  bool has_no_baselines = false;
  std::string plots;
  bool is_json = false;
};

std::int32_t parse_tokens(const std::string& text) {
  const std::optional<std::int64_t> tokens = count_of(text);
  if (!tokens || *tokens < 2 || *tokens > kMostTokens || *tokens % 2 != 0) {
    throw invalid("--tokens", shown(text), "even numbers from 2 to 1024k");
  }
  return static_cast<std::int32_t>(*tokens);
}

void check(const DistBenchOptions& options) {
  if (options.head_dim % 8 != 0) {
    throw invalid("--head-dim", options.head_dim, "multiples of 8 from 8 to 128");
  }
  const bool is_shm = options.transport.value_or(Transport::Shm) == Transport::Shm;
  if (options.is_cpu && !is_shm) {
    throw invalid("--transport", transport_name(*options.transport), "shm with --cpu");
  }
  if (!options.is_cpu && options.transport == Transport::Shm) {
    throw invalid("--transport", "shm", "nvlink or nccl without --cpu");
  }
  if (options.is_cpu && !options.nccl.empty()) {
    throw invalid("--nccl", "given with --cpu", "on GPUs");
  }
}

Exit run_dist(const DistFlags& flags) {
  DistBenchOptions options = flags.options;
  options.has_baselines = !flags.has_no_baselines;
  if (flags.is_forward || flags.is_backward) {
    options.times_pass = {flags.is_forward, flags.is_backward};
  }
  check(options);
  if (!flags.plots.empty()) make_folder("--plots", flags.plots);
  const DistReport report =
      run_dist_bench(options, [](const std::string& line) { std::cerr << line << std::endl; });
  if (report.cells.empty()) return Exit::Ok;  // a launched rank that reports nothing
  if (!flags.plots.empty()) {
    for (const auto& [name, picture] : to_plots(options, report)) {
      write_file("--plots", (std::filesystem::path(flags.plots) / name).string(), picture);
    }
  }
  std::cout << (flags.is_json ? to_json(options, report) : to_table(options, report));
  return Exit::Ok;
}

void add_list_flags(CLI::App& app, DistBenchOptions& options) {
  const auto add = [&app](const char* name, const char* type, const char* help, auto parse) {
    app.add_option_function<std::string>(name, parse, help)->type_name(type);
  };
  add("--gpus", "N,...", "numbers of ranks (default 1, 2, 4, 8, those there are; with --cpu 2)",
      [&options](const std::string& text) {
        options.ranks = parse_ints("--gpus", text, {1, kMostRanks});
      });
  add("--tokens", "N,...", "of each rank, such as 8k (default 8k,16k,32k)",
      [&options](const std::string& text) {
        options.tokens.clear();
        for (const std::string& part : split_list(text)) {
          options.tokens.push_back(parse_tokens(part));
        }
      });
  add("--masks", "NAME,...",
      "full, causal, varlen_full, varlen_causal, window, varlen_block_causal, prefix_tree (default "
      "all)",
      [&options](const std::string& text) {
        options.masks = parse_names("--masks", text, dist_mask_names());
      });
  add("--heads", "Q:KV", "heads of q and of k and v (default 64:8)",
      [&options](const std::string& text) {
        std::tie(options.heads_q, options.heads_kv) = parse_heads("--heads", text);
      });
  add("--head-dim,--dim", "N", "multiple of 8 (default 128)", [&options](const std::string& text) {
    options.head_dim = static_cast<std::int32_t>(parse_int("--head-dim", text, {8, 128}));
  });
  add("--transport", "NAME",
      "nvlink, nccl; with --cpu shm (default nvlink where it is possible, else nccl)",
      [&options](const std::string& text) {
        options.transport = transport_from_name("--transport", text);
      });
}

}  // namespace

Command add_dist_bench_command(CLI::App& parent) {
  CLI::App* app = parent.add_subcommand(
      "dist", "Time attention over the GPUs of this machine, beside Ulysses, ring and others");
  const auto flags = std::make_shared<DistFlags>();
  DistBenchOptions& options = flags->options;
  add_list_flags(*app, options);
  app->add_flag("--forward", flags->is_forward, "time the forward (default both)");
  app->add_flag("--backward", flags->is_backward, "time the backward (default both)");
  add_int(*app, "--rounds", options.rounds, {1, 1000}, "rounds per cell, of every side in turn");
  app->add_flag("--no-baselines", flags->has_no_baselines,
                "no Ulysses, ring, all-gather and USP, which move rows by NCCL on GPUs");
  add_path(*app, "--nccl", "FILE", options.nccl, "the NCCL library (default libnccl.so.2)");
  app->add_flag("--cpu", options.is_cpu, "compute on the CPU in float32, for small sizes");
  add_int(*app, "--deadline", options.deadline_seconds, {1, 86400}, "seconds to wait for a rank");
  add_path(*app, "--plots", "DIR", flags->plots, "folder for pictures of the shares");
  app->add_flag("--json", flags->is_json, "print JSON instead of a table");
  return {.app = app, .run = [flags] { return run_dist(*flags); }};
}

}  // namespace magi::cli
