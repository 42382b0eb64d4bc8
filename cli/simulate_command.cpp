// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <filesystem>
#include <iostream>
#include <memory>

#include "base/check.hpp"
#include "commands.hpp"
#include "common/files.hpp"
#include "common/flags.hpp"
#include "common/masks.hpp"
#include "common/progress.hpp"
#include "common/values.hpp"
#include "simulate/sweep.hpp"

namespace magi::cli {
namespace {

constexpr Bounds kRanks{1, 1024};
constexpr std::int32_t kRowsPerRank = 8192;
constexpr const char* kAll = "all";
/// The strategies that a choice is made between.
constexpr std::array kShown = {"auto_work", "auto", "zigzag_ring", "all_gather", "ulysses", "usp"};

struct SimulateFlags {
  MaskFlags mask;
  std::vector<const CLI::Option*> mask_options;
  std::string growing;
  std::optional<std::int32_t> rows_per_rank;
  SweepOptions options;
  std::string cluster;
  std::string cost;
  std::string curves;
  std::string title;
  bool is_json = false;
};

std::vector<std::string> all_strategies() {
  std::vector<std::string> names = simulate::placement_strategies();
  for (std::string& name : simulate::moving_strategies()) names.push_back(std::move(name));
  for (std::string& name : simulate::baseline_strategies()) names.push_back(std::move(name));
  return names;
}

/// "auto" or numbers.
template <typename Integer = std::int32_t>
std::vector<std::optional<Integer>> parse_choices(const std::string& flag, const std::string& text,
                                                  Bounds bounds) {
  std::vector<std::optional<Integer>> choices;
  for (const std::string& part : split_list(text)) {
    choices.push_back(parse_int_or_auto(flag, part, bounds));
  }
  return choices;
}

/// The mask of each number of ranks: always the one of the mask flags, or one that grows.
std::function<Mask(std::int32_t)> mask_source(const SimulateFlags& flags) {
  if (flags.growing.empty()) {
    return [mask = make_mask(flags.mask)](std::int32_t) { return mask; };
  }
  return [&flags](std::int32_t ranks) {
    return growing_mask(flags.growing,
                        std::int64_t{ranks} * flags.rows_per_rank.value_or(kRowsPerRank));
  };
}

std::string growing_name(const std::string& text) {
  const std::vector<std::string> names = parse_names("--growing", text, dist_mask_names());
  if (names.size() > 1) throw invalid("--growing", shown(text), "one name");
  return names.front();
}

void write_curves(const SimulateFlags& flags, const std::vector<SweepRow>& rows) {
  make_folder("--curves", flags.curves);
  const std::pair<const char*, Curve> pictures[] = {{"time.svg", Curve::StepTime},
                                                    {"network.svg", Curve::NetworkBytes},
                                                    {"node.svg", Curve::NodeBytes}};
  for (const auto& [name, curve] : pictures) {
    const std::string path = (std::filesystem::path(flags.curves) / name).string();
    const std::string title = flags.title.empty() ? "Growth" : flags.title;
    write_file("--curves", path, curve_picture(rows, curve, title));
    std::cerr << "wrote " << path << '\n';
  }
}

/// Refuses flags that would have no effect.
void check_used(const SimulateFlags& flags, const SweepOptions& options) {
  if (!flags.growing.empty())
    refuse_given(flags.mask_options, "given with --growing", "one of the two");
  if (flags.growing.empty() && flags.rows_per_rank) {
    throw invalid("--rows-per-rank", "given without --growing", "both");
  }
  if (flags.curves.empty() && !flags.title.empty()) {
    throw invalid("--title", "given without --curves", "both");
  }
  const bool has_usp = std::ranges::find(options.strategies, "usp") != options.strategies.end();
  if (options.ulysses_degree > 0 && !has_usp) {
    throw invalid("--ulysses", options.ulysses_degree, "0 without the strategy usp");
  }
}

Exit run_simulate(const SimulateFlags& flags) {
  SweepOptions options = flags.options;
  if (options.strategies.empty()) options.strategies = {kShown.begin(), kShown.end()};
  check_used(flags, options);
  if (!flags.cluster.empty()) {
    options.cluster = simulate::cluster_from_json(read_file("--cluster", flags.cluster));
  }
  if (!flags.cost.empty()) {
    const CostFile file = cost_file_from_json(read_file("--cost", flags.cost));
    options.cluster = simulate::with_measured(options.cluster, file);
  }
  Progress progress("simulated", options.ranks.size() * options.strategies.size());
  const std::vector<SweepRow> rows =
      run_sweep(options, mask_source(flags), [&progress] { progress.advance(); });
  if (!flags.curves.empty()) write_curves(flags, rows);
  std::cout << (flags.is_json ? to_json(options, rows) : to_table(options, rows));
  return Exit::Ok;
}

void add_sweep_flags(CLI::App& app, SweepOptions& options) {
  const auto add = [&app](const char* name, const char* type, const char* help, auto parse) {
    app.add_option_function<std::string>(name, parse, help)->type_name(type);
  };
  add("--ranks", "N,...", "ranks that share the sequence (default 8)",
      [&options](const std::string& text) { options.ranks = parse_ints("--ranks", text, kRanks); });
  add("--chunk", "N|auto,...", "rows of a chunk, at most (default auto)",
      [&options](const std::string& text) {
        options.chunks = parse_choices("--chunk", text, {1, kMaxRows});
      });
  add("--degree", "N|auto,...", "remote stages; 0: fetch everything first (default auto)",
      [&options](const std::string& text) {
        options.degrees = parse_choices("--degree", text, {0, 64});
      });
  add("--max-exchange-bytes", "N|auto,...",
      "bytes of rows of others that a rank may hold; 0: no bound (default auto: 4 GiB where a plan "
      "can keep that)",
      [&options](const std::string& text) {
        options.bounds = parse_choices<std::int64_t>("--max-exchange-bytes", text, kExchangeBytes);
      });
  add("--strategies", "NAME,...",
      "the library's placements by name; queries, heads, mixed, auto_work, latents; ring, "
      "zigzag_ring, "
      "all_gather, ulysses, usp; or all (default auto_work, auto, zigzag_ring, all_gather, "
      "ulysses, usp)",
      [&options](const std::string& text) {
        options.strategies =
            text == kAll ? all_strategies() : parse_names("--strategies", text, all_strategies());
      });
  add("--latent", "N:N",
      "elements of a latent, of which keys and values are projections, and of a key's rotated "
      "part, "
      "for latents",
      [&options](const std::string& text) {
        const auto [latent, rope] = parse_pair("--latent", text, ':', {0, 65536});
        options.latents = {.latent = latent, .rope = rope};
      });
  add_int(app, "--ulysses", options.ulysses_degree, {0, 1024},
          "ranks of usp that share heads; 0: as many as fit a node");
}

}  // namespace

Command add_simulate_command(CLI::App& parent) {
  CLI::App* app = parent.add_subcommand(
      "simulate", "Predict time, bytes and memory of a step on a cluster, beside ring and others");
  app->footer("Example:\n  magi simulate --documents 4096,1000,3096 --causal --ranks 8");
  const auto flags = std::make_shared<SimulateFlags>();
  flags->options.config = default_plan_config();
  flags->mask_options = options_of(*app, [&] { add_mask_flags(*app, flags->mask); });
  app->add_option_function<std::string>(
         "--growing",
         [target = &flags->growing](const std::string& text) { *target = growing_name(text); },
         "a mask that grows with the ranks: full, causal, varlen_full, varlen_causal, window, "
         "varlen_block_causal, prefix_tree, video_blocks")
      ->type_name("NAME");
  add_int(*app, "--rows-per-rank", flags->rows_per_rank, {1, kMaxRows},
          "rows of --growing (default " + std::to_string(kRowsPerRank) + ")");
  add_sweep_flags(*app, flags->options);
  add_shape_flags(*app, flags->options.config);
  add_search_flags(*app, flags->options.config);
  add_path(*app, "--cluster", "FILE", flags->cluster,
           "a cluster as JSON (default hosts of 8 H200)");
  add_path(*app, "--cost", "FILE", flags->cost,
           "constants of magi doctor --calibrate that replace the cluster's");
  add_path(*app, "--curves", "DIR", flags->curves, "folder for pictures of the growth");
  app->add_option("--title", flags->title, "title of the pictures (default Growth)")
      ->type_name("TEXT");
  app->add_flag("--json", flags->is_json, "print JSON instead of a table");
  return {.app = app, .run = [flags] { return run_simulate(*flags); }};
}

}  // namespace magi::cli
