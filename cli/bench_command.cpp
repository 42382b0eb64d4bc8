// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <tuple>

#include "base/check.hpp"
#include "bench/kernel_bench.hpp"
#include "commands.hpp"
#include "common/flags.hpp"
#include "common/masks.hpp"
#include "common/values.hpp"

namespace magi::cli {
namespace {

constexpr std::int32_t kKilo = 1024;
constexpr std::int32_t kLongestByDefault = 128 * kKilo;

std::int32_t parse_length(const std::string& text) {
  const std::vector<std::int32_t> allowed = bench_lengths();
  const std::optional<std::int64_t> rows = count_of(text);
  if (!rows || std::find(allowed.begin(), allowed.end(), *rows) == allowed.end()) {
    throw invalid("--lengths", shown(text),
                  "powers of two from " + std::to_string(allowed.front() / kKilo) + "k to " +
                      std::to_string(allowed.back() / kKilo) + "k");
  }
  return static_cast<std::int32_t>(*rows);
}

std::vector<std::int32_t> parse_lengths(const std::string& text) {
  std::vector<std::int32_t> lengths;
  for (const std::string& part : split_list(text)) lengths.push_back(parse_length(part));
  return lengths;
}

std::vector<std::int32_t> default_lengths() {
  std::vector<std::int32_t> lengths = bench_lengths();
  std::erase_if(lengths, [](std::int32_t rows) { return rows > kLongestByDefault; });
  return lengths;
}

struct BenchFlags {
  KernelBenchOptions options{.masks = bench_mask_names(), .lengths = default_lengths()};
  bool is_json = false;
};

void check(const KernelBenchOptions& options) {
  for (const auto& [name, dim] :
       {std::pair{"--head-dim", options.head_dim}, {"--head-dim-v", options.head_dim_v}}) {
    if (dim % 8 != 0) throw invalid(name, dim, "multiples of 8 up to 256");
  }
}

Exit run_kernel(const BenchFlags& flags) {
  check(flags.options);
  const KernelBenchReport report =
      run_kernel_bench(flags.options, [](const std::string& line) { std::cerr << line << '\n'; });
  std::cout << (flags.is_json ? to_json(flags.options, report) : to_table(flags.options, report));
  return Exit::Ok;
}

void add_kernel_flags(CLI::App& app, BenchFlags& flags) {
  KernelBenchOptions& options = flags.options;
  const auto add = [&app](const char* name, const char* type, const char* help, auto parse) {
    app.add_option_function<std::string>(name, parse, help)->type_name(type);
  };
  add("--masks", "NAME,...",
      "full, causal, varlen_full, varlen_causal, window, block_causal (default all)",
      [&options](const std::string& text) {
        options.masks = parse_names("--masks", text, bench_mask_names());
      });
  add("--lengths", "N,...", "rows, powers of two such as 8k (default 1k to 128k)",
      [&options](const std::string& text) { options.lengths = parse_lengths(text); });
  add("--heads", "Q:KV", "heads of q and of k and v (default 64:8)",
      [&options](const std::string& text) {
        std::tie(options.heads_q, options.heads_kv) = parse_heads("--heads", text);
      });
  add_int(app, "--head-dim", options.head_dim, {8, 256}, "multiple of 8");
  add_int(app, "--head-dim-v", options.head_dim_v, {8, 256}, "of v where it differs");
  add_int(app, "--device", options.device, {0, 1023}, "CUDA ordinal");
  add_int(app, "--sm-margin", options.sm_margin, {0, 1023}, "multiprocessors left to others");
  app.add_flag("--backward", options.has_backward,
               "time the backward too, in its deterministic mode");
  add_int(app, "--rounds", options.rounds, {1, 1000}, "rounds per case");
  add_path(app, "--cublas", "FILE", options.cublas,
           "the cuBLAS library, where the system has none");
  app.add_flag("--json", flags.is_json, "print JSON instead of a table");
}

}  // namespace

Command add_bench_command(CLI::App& parent) {
  CLI::App* app = parent.add_subcommand("bench", "Time what the library runs on this machine");
  app->require_subcommand(1);
  CLI::App* kernel = app->add_subcommand(
      "kernel", "Time the attention kernels on a GPU, beside a cuBLAS matrix product");
  kernel->footer("Example:\n  magi bench kernel");
  const auto flags = std::make_shared<BenchFlags>();
  add_kernel_flags(*kernel, *flags);
  return {.app = app, .run = [flags] { return run_kernel(*flags); }};
}

}  // namespace magi::cli
