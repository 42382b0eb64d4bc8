// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <memory>

#include "commands.hpp"
#include "common/cost.hpp"
#include "common/files.hpp"
#include "common/flags.hpp"
#include "draw/numbers.hpp"

namespace magi::cli {
namespace {

struct PlanFlags {
  MaskFlags mask;
  PlanConfig config = default_plan_config();
  std::string out;
  bool is_json = false;
};

Exit run_plan(const PlanFlags& flags) {
  const Mask mask = make_mask(flags.mask);
  PlanConfig config = flags.config;
  config.cost = cost_of_environment().cost;
  const auto start = std::chrono::steady_clock::now();
  const Plan plan = make_plan(mask, config);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  std::cerr << "planned in " << draw::seconds_text(elapsed.count()) << '\n';
  if (!flags.out.empty()) {
    write_file("--out", flags.out, plan_to_json(plan));
    std::cerr << "wrote " << flags.out << '\n';
  }
  std::cout << (flags.is_json ? plan_to_json(plan) : describe(plan));
  if (flags.is_json) std::cout << '\n';
  return Exit::Ok;
}

}  // namespace

Command add_plan_command(CLI::App& parent) {
  CLI::App* app = parent.add_subcommand("plan", "Plan a mask and report balance, bytes and time");
  app->footer("Example:\n  magi plan --documents 4096,1000,3096 --causal --ranks 4");
  const auto flags = std::make_shared<PlanFlags>();
  add_mask_flags(*app, flags->mask);
  add_plan_flags(*app, flags->config);
  add_path(*app, "--out", "FILE", flags->out, "write the plan as JSON");
  app->add_flag("--json", flags->is_json, "print the plan as JSON instead of the report");
  return {.app = app, .run = [flags] { return run_plan(*flags); }};
}

}  // namespace magi::cli
