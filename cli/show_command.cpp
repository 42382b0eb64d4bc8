// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <vector>

#include "base/check.hpp"
#include "base/env.hpp"
#include "commands.hpp"
#include "common/cost.hpp"
#include "common/files.hpp"
#include "common/flags.hpp"
#include "common/terminal.hpp"
#include "common/values.hpp"
#include "draw/pictures.hpp"
#include "magi/error.hpp"
#include "magi/mask_builders.hpp"

namespace magi::cli {
namespace {

struct ShowFlags {
  std::string file;
  MaskFlags mask;
  PlanConfig config = default_plan_config();
  std::string folder;
  std::string title;
  draw::MaskPart part;
  bool is_mask_only = false;
  bool is_text = false;
  std::optional<std::int32_t> width;
  std::string charset;
  std::vector<const CLI::Option*> mask_options;
  std::vector<const CLI::Option*> plan_options;
};

std::string folder_of(const ShowFlags& flags) { return flags.folder.empty() ? "." : flags.folder; }

void write_picture(const ShowFlags& flags, const char* name, const std::string& picture) {
  const std::string path = (std::filesystem::path(folder_of(flags)) / name).string();
  write_file("--out", path, picture);
  std::cout << path << '\n';
}

std::string title_of(const ShowFlags& flags, const char* kind) {
  return flags.title.empty() ? std::string(kind) : flags.title + ": " + kind;
}

void show_plan(const ShowFlags& flags, const Plan& plan) {
  const auto titled = [&](const char* kind) { return title_of(flags, kind); };
  write_picture(flags, "mask.svg",
                draw::mask_picture(plan.mask, &plan.placement_q, titled("mask"), flags.part));
  write_picture(flags, "placement.svg", draw::placement_picture(plan, titled("placement")));
  write_picture(flags, "traffic.svg", draw::traffic_picture(plan, titled("traffic")));
  write_picture(flags, "timeline.svg", draw::timeline_picture(plan, titled("timeline")));
  write_picture(flags, "steps.svg", draw::steps_picture(plan, titled("steps")));
}

/// The terminal's style, or as told.
draw::TerminalStyle style_of(const ShowFlags& flags) {
  draw::TerminalStyle style = terminal_style(standard_output(), env_variable);
  if (flags.width) style.width = *flags.width;
  if (flags.charset == "ascii" || flags.charset == "blocks") {
    style.is_ascii = flags.charset == "ascii";
  } else if (!flags.charset.empty()) {
    throw invalid("--charset", shown(flags.charset), "blocks, ascii");
  }
  return style;
}

void check_text_flags(const ShowFlags& flags) {
  if (flags.is_text && !flags.folder.empty()) {
    throw invalid("--text", "given with --out", "one of the two");
  }
  if (!flags.is_text && (flags.width || !flags.charset.empty())) {
    throw invalid(flags.width ? "--width" : "--charset", "given without --text", "both");
  }
}

void print_text(const ShowFlags& flags, const Mask& mask, const Plan* plan) {
  const draw::TerminalStyle style = style_of(flags);
  const bool is_of_ranks = plan != nullptr && !flags.is_mask_only;
  std::cout << draw::mask_text(mask, is_of_ranks ? &plan->placement_q : nullptr,
                               title_of(flags, "mask"), style, flags.part);
  if (is_of_ranks) {
    std::cout << '\n' << draw::timeline_text(*plan, title_of(flags, "timeline"), style);
  }
}

Exit run_show(const ShowFlags& flags) {
  check_text_flags(flags);
  std::optional<Plan> plan;
  Mask mask;
  if (flags.file.empty()) {
    mask = make_mask(flags.mask);
  } else {
    refuse_given(flags.mask_options, "given with FILE", "one of the two");
    const std::string text = read_file("FILE", flags.file);
    if (is_mask_json(text)) {
      mask = mask_from_json(text);
    } else if (text.find("magi plan") == std::string::npos) {
      throw invalid("FILE", "neither a mask nor a plan",
                    "a mask as JSON, see examples/masks, or what magi plan --json prints");
    } else {
      refuse_given(flags.plan_options, "given with a plan's FILE, which has its own", "a mask");
      plan = plan_from_json(text);
    }
  }
  if (flags.is_mask_only) {
    refuse_given(flags.plan_options, "given with --mask-only", "one of the two");
  }
  if (!plan && !flags.is_mask_only) {
    PlanConfig config = flags.config;
    config.cost = cost_of_environment().cost;
    plan = make_plan(mask, config);
  }
  if (flags.is_text) {
    print_text(flags, plan ? plan->mask : mask, plan ? &*plan : nullptr);
    return Exit::Ok;
  }
  make_folder("--out", folder_of(flags));
  if (flags.is_mask_only) {
    const std::string title = flags.title.empty() ? "mask" : flags.title;
    write_picture(flags, "mask.svg",
                  draw::mask_picture(plan ? plan->mask : mask, nullptr, title, flags.part));
  } else {
    show_plan(flags, *plan);
  }
  return Exit::Ok;
}

void add_rows(CLI::App& app, const char* name, std::optional<Range>& target, const char* help) {
  app.add_option_function<std::string>(
         name,
         [name, &target](const std::string& text) {
           const auto [begin, end] = parse_pair(name, text, ':', {0, kMaxRows});
           target = {.begin = begin, .end = end};
         },
         help)
      ->type_name("BEGIN:END");
}

}  // namespace

Command add_show_command(CLI::App& parent) {
  CLI::App* app = parent.add_subcommand("show",
                                        "Draw mask, placement, traffic, timeline and steps as SVG "
                                        "and print the files' paths, or mask "
                                        "and timeline as text");
  app->footer("Example:\n  magi show --documents 4096,1000,3096 --causal --ranks 4 --out pictures");
  const auto flags = std::make_shared<ShowFlags>();
  add_path(*app, "FILE", "", flags->file, "a mask or a plan as JSON (- for standard input)");
  flags->mask_options = options_of(*app, [&] { add_mask_flags(*app, flags->mask); });
  flags->plan_options = options_of(*app, [&] { add_plan_flags(*app, flags->config); });
  add_path(*app, "--out", "DIR", flags->folder, "folder of the pictures (default .)");
  app->add_option("--title", flags->title, "title of the pictures")->type_name("TEXT");
  add_rows(*app, "--rows", flags->part.rows, "rows of the mask that are drawn (default all)");
  add_rows(*app, "--keys", flags->part.keys,
           "keys of the mask that are drawn (default those that the rows see)");
  app->add_flag("--mask-only", flags->is_mask_only, "draw the mask, without ranks");
  app->add_flag("--text", flags->is_text,
                "print mask and timeline in characters instead of writing files");
  add_int(*app, "--width", flags->width, {40, 400},
          "with --text: columns (default those of the terminal)");
  app->add_option("--charset", flags->charset,
                  "with --text: blocks or ascii (default as the locale allows)");
  return {.app = app, .run = [flags] { return run_show(*flags); }};
}

}  // namespace magi::cli
