// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include "commands.hpp"
#include "cost.hpp"
#include "draw/pictures.hpp"
#include "files.hpp"
#include "flags.hpp"
#include "magi/error.hpp"
#include "magi/mask_builders.hpp"

namespace magi::cli {
namespace {

struct ShowFlags {
  std::string file;
  MaskFlags mask;
  PlanConfig config = default_plan_config();
  std::string folder = ".";
  std::string title;
  bool is_mask_only = false;
};

void write_picture(const ShowFlags& flags, const char* name, const std::string& picture) {
  const std::string path = (std::filesystem::path(flags.folder) / name).string();
  write_file("--out", path, picture);
  std::cout << path << '\n';
}

void show_plan(const ShowFlags& flags, const Plan& plan) {
  const auto titled = [&](const char* kind) {
    return flags.title.empty() ? std::string(kind) : flags.title + ": " + kind;
  };
  write_picture(flags, "mask.svg",
                draw::mask_picture(plan.mask, &plan.placement_q, titled("mask")));
  write_picture(flags, "placement.svg", draw::placement_picture(plan, titled("placement")));
  write_picture(flags, "traffic.svg", draw::traffic_picture(plan, titled("traffic")));
  write_picture(flags, "timeline.svg", draw::timeline_picture(plan, titled("timeline")));
  write_picture(flags, "steps.svg", draw::steps_picture(plan, titled("steps")));
}

Exit run_show(const ShowFlags& flags) {
  std::optional<Plan> plan;
  Mask mask;
  if (flags.file.empty()) {
    mask = make_mask(flags.mask);
  } else if (flags.mask.has_source()) {
    throw InvalidArgument("FILE is given with a mask flag; allowed: one of the two");
  } else {
    const std::string text = read_file("FILE", flags.file);
    if (is_mask_json(text)) {
      mask = mask_from_json(text);
    } else {
      plan = plan_from_json(text);
    }
  }
  if (!plan && !flags.is_mask_only) {
    PlanConfig config = flags.config;
    config.cost = cost_of_environment().cost;
    plan = make_plan(mask, config);
  }
  make_folder("--out", flags.folder);
  if (flags.is_mask_only) {
    const std::string title = flags.title.empty() ? "mask" : flags.title;
    write_picture(flags, "mask.svg", draw::mask_picture(plan ? plan->mask : mask, nullptr, title));
  } else {
    show_plan(flags, *plan);
  }
  return Exit::Ok;
}

}  // namespace

Command add_show_command(CLI::App& parent) {
  CLI::App* app = parent.add_subcommand(
      "show",
      "Draw mask, placement, traffic, timeline and steps as SVG and print the files' paths");
  const auto flags = std::make_shared<ShowFlags>();
  add_path(*app, "FILE", "", flags->file, "a mask or a plan as JSON (- for standard input)");
  add_mask_flags(*app, flags->mask);
  add_plan_flags(*app, flags->config);
  add_path(*app, "--out", "DIR", flags->folder, "folder of the pictures (default .)");
  app->add_option("--title", flags->title, "title of the pictures")->type_name("TEXT");
  app->add_flag("--mask-only", flags->is_mask_only, "draw the mask, without ranks");
  return {.app = app, .run = [flags] { return run_show(*flags); }};
}

}  // namespace magi::cli
