// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <sstream>

#include "base/check.hpp"
#include "base/words.hpp"
#include "commands.hpp"
#include "common/files.hpp"
#include "common/flags.hpp"
#include "common/text_table.hpp"
#include "common/values.hpp"
#include "draw/numbers.hpp"
#include "draw/pictures.hpp"
#include "magi/batch.hpp"

namespace magi::cli {
namespace {

constexpr Bounds kRanks{1, 4096};

struct BatchFlags {
  std::vector<std::int32_t> lengths;
  std::string lengths_file;
  std::string masks;
  std::string check;
  BatchConfig config{.num_ranks = 8, .devices_per_node = 8};
  std::vector<const CLI::Option*> config_options;
  std::string out;
  std::string picture;
  bool is_json = false;
};

BatchSample sample_of(const std::string& path) {
  const Mask mask = mask_from_json(read_file("--masks", path));
  if (mask.rows_q != mask.rows_k) {
    throw invalid(path + ": keys", mask.rows_k,
                  std::to_string(mask.rows_q) + ", as many as queries");
  }
  return {mask.rows_q, area(mask)};
}

/// Lines of one length each; blank ones and the ends of Windows' lines say nothing.
std::vector<std::int32_t> read_lengths(const std::string& path) {
  std::istringstream text(read_file("--lengths-file", path));
  std::vector<std::int32_t> lengths;
  std::string line;
  for (int number = 1; std::getline(text, line); ++number) {
    line.erase(line.find_last_not_of(" \t\r") + 1);
    if (line.empty()) continue;
    const std::string name = "line " + std::to_string(number) + " of --lengths-file";
    lengths.push_back(static_cast<std::int32_t>(parse_int(name, line, {0, kMaxRows})));
  }
  return lengths;
}

int number_of_sources(const BatchFlags& flags) {
  return !flags.lengths.empty() + !flags.lengths_file.empty() + !flags.masks.empty();
}

std::vector<BatchSample> samples_of(const BatchFlags& flags) {
  const int sources = number_of_sources(flags);
  if (sources != 1) {
    throw invalid("source of samples", sources == 0 ? "missing" : "given twice",
                  "one of --lengths, --lengths-file, --masks, --check");
  }
  std::vector<std::int32_t> lengths = flags.lengths;
  if (!flags.lengths_file.empty()) lengths = read_lengths(flags.lengths_file);
  std::vector<BatchSample> samples;
  for (const std::int32_t length : lengths) samples.push_back(causal_sample(length));
  if (flags.masks.empty()) return samples;
  for (const std::string& path : split_list(flags.masks)) samples.push_back(sample_of(path));
  return samples;
}

/// Refuses samples that are not those of the plan.
void compare_samples(const std::vector<BatchSample>& given, const BatchPlan& plan) {
  if (given.size() != plan.samples.size()) {
    throw invalid("number of samples", given.size(),
                  std::to_string(plan.samples.size()) + ", those of --check");
  }
  for (std::size_t i = 0; i < given.size(); ++i) {
    const auto& [rows, pairs] = plan.samples[i];
    if (given[i] == plan.samples[i]) continue;
    throw invalid("pairs of sample " + std::to_string(i), given[i].pairs,
                  std::to_string(pairs) + ", of " + counted(rows, "row") + ", as in --check");
  }
}

BatchPlan read_plan(const BatchFlags& flags) {
  refuse_given(flags.config_options, "given with a plan, which has its own", "one of the two");
  BatchPlan plan = batch_from_json(read_file("--check", flags.check));
  const bool is_compared = number_of_sources(flags) > 0;
  if (is_compared) compare_samples(samples_of(flags), plan);
  const bool is_causal = std::ranges::all_of(
      plan.samples, [](const BatchSample& one) { return one == causal_sample(one.rows); });
  std::cerr << (is_compared || is_causal ? "sound\n"
                                         : "sound; samples that are not causal need masks\n");
  return plan;
}

BatchPlan make_plan(const BatchFlags& flags) {
  const std::vector<BatchSample> samples = samples_of(flags);
  const auto start = std::chrono::steady_clock::now();
  BatchPlan plan = plan_batch(samples, flags.config);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  std::cerr << "planned in " << draw::seconds_text(elapsed.count()) << '\n';
  return plan;
}

/// A line for each micro-batch.
std::string table_of(const BatchPlan& plan) {
  std::vector<TableLine> lines{
      {"micro-batch", "whole samples", "spread", "most rows", "shortest", "longest"}};
  const auto num_ranks = static_cast<std::ptrdiff_t>(plan.config.num_ranks);
  for (std::size_t m = 0; m < plan.micro_batches.size(); ++m) {
    std::vector<std::int32_t> counts(plan.samples.size(), 0);
    for (const BatchPart& part : plan.micro_batches[m].parts) {
      ++counts[static_cast<std::size_t>(part.sample)];
    }
    const auto first = static_cast<std::ptrdiff_t>(m) * num_ranks;
    const auto rows = plan.report.rank_rows.begin() + first;
    const auto seconds = plan.report.rank_seconds.begin() + first;
    lines.push_back(
        {std::to_string(m), draw::grouped(std::ranges::count(counts, 1)),
         draw::grouped(std::ranges::count_if(counts, [](std::int32_t n) { return n > 1; })),
         draw::grouped(*std::max_element(rows, rows + num_ranks)),
         draw::seconds_text(*std::min_element(seconds, seconds + num_ranks)),
         draw::seconds_text(*std::max_element(seconds, seconds + num_ranks))});
  }
  return text_table(lines, 1);
}

void write_report(const BatchPlan& plan) {
  const BatchReport& report = plan.report;
  std::cout << counted(static_cast<std::int64_t>(plan.samples.size()), "sample") << " on "
            << counted(plan.config.num_ranks, "rank") << " of "
            << counted(plan.config.rows_per_rank, "row") << "\n"
            << table_of(plan) << "step         " << draw::seconds_text(report.step_seconds) << ", "
            << draw::decimal(report.gap(), 4) << " times the bound\n"
            << "waited for   " << draw::bytes_text(report.node_bytes) << " in nodes, "
            << draw::bytes_text(report.network_bytes) << " between nodes\n";
}

Exit run_batch(const BatchFlags& flags) {
  const BatchPlan plan = flags.check.empty() ? make_plan(flags) : read_plan(flags);
  if (!flags.out.empty()) write_file("--out", flags.out, batch_to_json(plan));
  if (!flags.picture.empty()) {
    write_file("--picture", flags.picture, draw::batch_picture(plan, "Batch"));
  }
  if (flags.is_json) {
    std::cout << batch_to_json(plan);
  } else {
    write_report(plan);
  }
  return Exit::Ok;
}

void add_cost_flags(CLI::App& app, BatchCost& cost) {
  const auto add = [&app](const char* name, double& target, const char* help) {
    app.add_option_function<std::string>(
           name,
           [name, &target](const std::string& text) {
             target = parse_number(name, text, 0.0, 1e30);
           },
           help)
        ->type_name("X");
  };
  add("--flops-per-token", cost.flops_per_token, "of a step but attention (default Qwen3-8B)");
  add("--flops-per-pair", cost.flops_per_pair, "of attention, a visible pair");
  add("--bytes-per-token", cost.bytes_per_token, "that another rank waits for");
  add("--flops-per-second", cost.flops_per_second, "of a rank (default an H200)");
  add("--bytes-per-second", cost.bytes_per_second, "into a rank, inside a node");
  add("--network-bytes-per-second", cost.network_bytes_per_second, "and between nodes");
}

void add_config_flags(CLI::App& app, BatchConfig& config) {
  add_int(app, "--ranks", config.num_ranks, kRanks, "ranks (default 8)");
  add_int(app, "--rows-per-rank", config.rows_per_rank, {1, kMaxRows},
          "rows that a rank has memory for in a micro-batch (default 16384)");
  add_int(app, "--devices-per-node", config.devices_per_node, {0, kRanks.high},
          "ranks of a node; 0: one holds all (default 8)");
  add_int(app, "--micro-batches", config.num_micro_batches, {0, 1 << 16},
          "number of them; 0: that of the shortest step (default 0)");
  add_int(app, "--chunk", config.chunk_size, {0, kMaxRows},
          "rows that samples are cut at multiples of; 0: a 256th of a rank's, 64 at most");
  add_cost_flags(app, config.cost);
}

}  // namespace

Command add_batch_command(CLI::App& parent) {
  CLI::App* app = parent.add_subcommand(
      "batch", "Plan a batch of samples: who holds which, in which micro-batch");
  app->footer("Example:\n  magi batch --lengths 900,200000,1500,300 --ranks 16");
  const auto flags = std::make_shared<BatchFlags>();
  app->add_option_function<std::string>(
         "--lengths",
         [target = &flags->lengths](const std::string& text) {
           *target = parse_ints("--lengths", text, {0, kMaxRows});
         },
         "rows of causal samples")
      ->type_name("N,...");
  add_path(*app, "--lengths-file", "FILE", flags->lengths_file, "the same, one a line");
  add_path(*app, "--masks", "FILE,...", flags->masks, "masks as JSON, one a sample, such as trees");
  add_path(*app, "--check", "FILE", flags->check,
           "read and check a plan of --out instead; its samples, where given");
  flags->config_options = options_of(*app, [&] { add_config_flags(*app, flags->config); });
  add_path(*app, "--out", "FILE", flags->out, "write the plan as JSON");
  add_path(*app, "--picture", "FILE", flags->picture, "write a picture, SVG");
  app->add_flag("--json", flags->is_json, "print the plan as JSON instead of the report");
  return {.app = app, .run = [flags] { return run_batch(*flags); }};
}

}  // namespace magi::cli
