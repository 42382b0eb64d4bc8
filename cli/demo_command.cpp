// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include "base/check.hpp"
#include "base/words.hpp"
#include "commands.hpp"
#include "common/cost.hpp"
#include "common/files.hpp"
#include "common/flags.hpp"
#include "demo/ranks.hpp"
#include "demo/report.hpp"
#include "draw/pictures.hpp"
#include "ranks/mpi_group.hpp"
#include "ranks/rank_processes.hpp"

namespace magi::cli {
namespace {

struct DemoFlags {
  std::vector<std::string> files;
  std::string docs;
  std::optional<std::int32_t> ranks;
  bool is_cpu = false;
  std::string transport;
  bool is_bfloat16 = false;
  std::int32_t tokens = 8192;
  std::int32_t deadline_seconds = 100;
  std::string out = "demo_out";
  bool is_json = false;
};

std::vector<std::vector<std::string>> write_pictures(const std::vector<Scene>& scenes,
                                                     const std::string& folder) {
  std::vector<std::vector<std::string>> all;
  for (const Scene& scene : scenes) {
    std::vector<std::string>& paths = all.emplace_back();
    const auto write = [&](const char* kind, const std::string& picture) {
      const auto path = std::filesystem::path(folder) / (scene.slug + "-" + kind + ".svg");
      write_file("--out", path.string(), picture);
      paths.push_back(path.string());
    };
    const Plan& plan = *scene.plan;
    write("mask", draw::mask_picture(plan.mask, &plan.placement_q, scene.name));
    write("placement", draw::placement_picture(plan, scene.name + ": placement"));
    write("traffic", draw::traffic_picture(plan, scene.name + ": traffic"));
    write("timeline", draw::timeline_picture(plan, scene.name + ": predicted timeline"));
  }
  return all;
}

/// The way ranks are run.
struct DemoRanks {
  std::optional<LaunchEnv> launched;
  std::int32_t count = 4;
  bool is_on_gpus = false;
  bool is_over_mpi = false;
};

/// Whether ranks talk over MPI: where mpirun started them and the plugin is there, or as told.
bool chooses_mpi(const DemoFlags& flags, const DemoRanks& ranks) {
  const bool is_mpirun = ranks.launched && ranks.launched->is_mpirun;
  if (flags.transport.empty()) return is_mpirun && !ranks.is_on_gpus && has_mpi_library();
  if (flags.transport == "shm") return false;
  if (flags.transport != "mpi") throw invalid("--transport", shown(flags.transport), "mpi, shm");
  if (!is_mpirun) throw invalid("--transport", "mpi", "shm without mpirun");
  return true;
}

/// Chooses the machine's GPUs where it has several, as many as there are ranks.
DemoRanks choose_ranks(const DemoFlags& flags) {
  constexpr std::int32_t kMostByDefault = 8;
  DemoRanks ranks{.launched = launch_env()};
  const std::int32_t num_gpus = flags.is_cpu ? 0 : std::min(count_gpus(), kMostByDefault);
  if (num_gpus > 1) ranks.count = num_gpus;
  if (flags.ranks) ranks.count = *flags.ranks;
  if (ranks.launched) {
    ranks.count = ranks.launched->num_ranks;
    if (flags.ranks.value_or(ranks.count) != ranks.count) {
      throw invalid("--ranks", *flags.ranks,
                    std::to_string(ranks.count) + ", as many as the launcher has started");
    }
  }
  if (ranks.count > kMostDemoRanks) {
    throw invalid("the number of ranks", ranks.count, "1 to " + std::to_string(kMostDemoRanks));
  }
  ranks.is_on_gpus = ranks.count > 1 && ranks.count <= num_gpus;
  ranks.is_over_mpi = chooses_mpi(flags, ranks);
  return ranks;
}

std::string launch_text(const DemoRanks& ranks, const SharedResults& results) {
  std::string text = std::to_string(ranks.count) + " rank processes";
  if (ranks.launched) text += " of a launcher";
  if (!ranks.is_on_gpus) {
    return text + (ranks.launched ? "," : "") +
           (ranks.is_over_mpi ? " over mpi" : " over shared memory");
  }
  return text + " with a GPU each (" + results.device() + ") over " + results.transport();
}

Exit report_results(const DemoFlags& flags, const DemoInput& input, const SharedResults& results,
                    const std::string& launch) {
  DemoReport report{.corpus = input.corpus,
                    .scenes = input.scenes,
                    .checks = {},
                    .pictures = write_pictures(input.scenes, flags.out),
                    .launch = launch,
                    .type = input.type,
                    .device = results.device(),
                    .transport = results.transport()};
  for (std::size_t s = 0; s < input.scenes.size(); ++s) {
    report.checks.push_back(
        check_scene(input.scenes[s], results.scene(s), input.embedding, input.type));
    std::cerr << "  checked: " << input.scenes[s].name
              << (report.checks.back().holds() ? "" : " FAILED") << std::endl;
  }
  std::cout << (flags.is_json ? report_json(report) : report_text(report));
  return report.holds() ? Exit::Ok : Exit::CheckFailed;
}

Exit run_demo(const DemoFlags& flags) {
  const DemoRanks ranks = choose_ranks(flags);
  const bool is_reporting = !ranks.launched || ranks.launched->rank == 0;
  const DType type = ranks.is_on_gpus || flags.is_bfloat16 ? DType::BFloat16 : DType::Float32;
  const Corpus corpus =
      pack_files(flags.files.empty() ? default_files(flags.docs) : flags.files, flags.tokens);
  const std::vector<Scene> scenes =
      make_scenes(corpus, ranks.count, type, cost_of_environment().cost);
  if (is_reporting) {
    make_folder("--out", flags.out);
    std::cerr << "  packed " << counted(corpus.num_documents(), "document") << " into "
              << counted(corpus.num_tokens(), "token") << ", planned " << scenes.size()
              << " masks on " << counted(ranks.count, "rank") << std::endl;
  }
  Embedding embedding = embed(corpus);
  if (type == DType::BFloat16) round_to_bfloat16(embedding);
  SharedResults results(scenes, ranks.count);
  const DemoInput input{.corpus = corpus,
                        .embedding = embedding,
                        .scenes = scenes,
                        .type = type,
                        .is_on_gpus = ranks.is_on_gpus,
                        .deadline = std::chrono::seconds(flags.deadline_seconds)};
  run_rank_processes({.launched = ranks.launched,
                      .num_ranks = ranks.count,
                      .name = "demo",
                      .deadline = input.deadline,
                      .is_over_mpi = ranks.is_over_mpi},
                     [&](const auto& base) { run_demo_rank(input, base, results); });
  if (!is_reporting) return Exit::Ok;
  return report_results(flags, input, results, launch_text(ranks, results));
}

}  // namespace

Command add_demo_command(CLI::App& parent) {
  CLI::App* app = parent.add_subcommand(
      "demo", "Distributed attention on real text, checked against dense float64 attention");
  app->footer("Example:\n  magi demo --ranks 4 --tokens 4096 --cpu");
  const auto flags = std::make_shared<DemoFlags>();
  app->add_option("FILES", flags->files, "texts (default: those of --docs and the licence texts)");
  add_path(*app, "--docs", "DIR", flags->docs, "a folder whose README.md and docs/*.md are used");
  add_int(*app, "--ranks", flags->ranks, {1, kMostDemoRanks},
          "rank processes, on GPUs where there are two and as many (default the GPUs, else 4)");
  app->add_flag("--cpu", flags->is_cpu, "compute on the CPU also where there are GPUs");
  app->add_option("--transport", flags->transport,
                  "what carries rows in host memory: shm, or mpi, the default under mpirun where "
                  "libmagi_mpi is");
  app->add_flag("--bfloat16", flags->is_bfloat16, "read bfloat16, as on GPUs, instead of float32");
  add_int(*app, "--tokens", flags->tokens, {64, 65536}, "tokens of the sequence, at most");
  add_int(*app, "--deadline", flags->deadline_seconds, {1, 86400}, "seconds to wait for a rank");
  add_path(*app, "--out", "DIR", flags->out, "folder of the pictures (default demo_out)");
  app->add_flag("--json", flags->is_json, "print the report as JSON");
  return {.app = app, .run = [flags] { return run_demo(*flags); }};
}

}  // namespace magi::cli
