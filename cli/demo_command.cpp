// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include "base/check.hpp"
#include "base/words.hpp"
#include "commands.hpp"
#include "cost.hpp"
#include "demo/ranks.hpp"
#include "demo/report.hpp"
#include "draw/pictures.hpp"
#include "files.hpp"
#include "flags.hpp"
#include "rank_processes.hpp"

namespace magi::cli {
namespace {

struct DemoFlags {
  std::vector<std::string> files;
  std::string docs;
  std::int32_t ranks = 4;
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

Exit report_results(const DemoFlags& flags, const DemoInput& input, const SharedResults& results,
                    const std::string& launch) {
  DemoReport report{.corpus = input.corpus,
                    .scenes = input.scenes,
                    .checks = {},
                    .pictures = write_pictures(input.scenes, flags.out),
                    .launch = launch};
  for (std::size_t s = 0; s < input.scenes.size(); ++s) {
    report.checks.push_back(check_scene(input.scenes[s], results.scene(s), input.embedding));
    std::cerr << "  checked: " << input.scenes[s].name
              << (report.checks.back().holds() ? "" : " FAILED") << std::endl;
  }
  std::cout << (flags.is_json ? report_json(report) : report_text(report));
  return report.holds() ? Exit::Ok : Exit::CheckFailed;
}

Exit run_demo(const DemoFlags& flags) {
  const std::optional<LaunchEnv> launched = launch_env();
  const std::int32_t num_ranks = launched ? launched->num_ranks : flags.ranks;
  if (num_ranks > kMostDemoRanks) {
    throw invalid("the number of ranks", num_ranks, "1 to " + std::to_string(kMostDemoRanks));
  }
  const bool is_reporting = !launched || launched->rank == 0;
  const Corpus corpus =
      pack_files(flags.files.empty() ? default_files(flags.docs) : flags.files, flags.tokens);
  const std::vector<Scene> scenes = make_scenes(corpus, num_ranks, cost_of_environment().cost);
  if (is_reporting) {
    make_folder("--out", flags.out);
    std::cerr << "  packed " << counted(corpus.num_documents(), "document") << " into "
              << counted(corpus.num_tokens(), "token") << ", planned " << scenes.size()
              << " masks on " << counted(num_ranks, "rank") << std::endl;
  }
  const Embedding embedding = embed(corpus);
  SharedResults results(scenes, num_ranks);
  const DemoInput input{.corpus = corpus, .embedding = embedding, .scenes = scenes};
  run_rank_processes({.launched = launched,
                      .num_ranks = num_ranks,
                      .name = "demo",
                      .deadline = std::chrono::seconds(flags.deadline_seconds)},
                     [&](const auto& group) { run_demo_rank(input, *group, results); });
  if (!is_reporting) return Exit::Ok;
  const std::string launch =
      std::to_string(num_ranks) + (launched ? " rank processes of a launcher, over shared memory"
                                            : " rank processes over shared memory");
  return report_results(flags, input, results, launch);
}

}  // namespace

Command add_demo_command(CLI::App& parent) {
  CLI::App* app = parent.add_subcommand(
      "demo", "Distributed attention on real text, checked against dense float64 attention");
  const auto flags = std::make_shared<DemoFlags>();
  app->add_option("FILES", flags->files, "texts (default: those of --docs and the licence texts)");
  add_path(*app, "--docs", "DIR", flags->docs, "a folder whose README.md and docs/*.md are used");
  add_int(*app, "--ranks", flags->ranks, {1, kMostDemoRanks}, "rank processes");
  add_int(*app, "--tokens", flags->tokens, {64, 65536}, "tokens of the sequence, at most");
  add_int(*app, "--deadline", flags->deadline_seconds, {1, 86400}, "seconds to wait for a rank");
  add_path(*app, "--out", "DIR", flags->out, "folder of the pictures (default demo_out)");
  app->add_flag("--json", flags->is_json, "print the report as JSON");
  return {.app = app, .run = [flags] { return run_demo(*flags); }};
}

}  // namespace magi::cli
