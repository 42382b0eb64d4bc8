// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "draw/numbers.hpp"
#include "files.hpp"
#include "flags.hpp"
#include "magi/plan.hpp"

namespace magi::cli {
namespace {

struct CheckFlags {
  std::string file;
  bool is_json = false;
};

Exit run_check(const CheckFlags& flags) {
  const Plan plan = plan_tables_from_json(read_file("FILE", flags.file));
  const auto start = std::chrono::steady_clock::now();
  const std::vector<std::string> problems = check_plan(plan);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  std::cerr << "checked in " << draw::seconds_text(elapsed.count()) << '\n';
  if (flags.is_json) {
    const nlohmann::json result = {{"is_sound", problems.empty()}, {"problems", problems}};
    std::cout << result.dump(1) << '\n';
  } else if (problems.empty()) {
    std::cout << "sound\n";
  } else {
    for (const std::string& problem : problems) std::cout << problem << '\n';
  }
  return problems.empty() ? Exit::Ok : Exit::CheckFailed;
}

}  // namespace

Command add_check_command(CLI::App& parent) {
  CLI::App* app =
      parent.add_subcommand("check", "Check a plan file against its mask with code of its own");
  const auto flags = std::make_shared<CheckFlags>();
  add_path(*app, "FILE", "", flags->file, "a plan as JSON; - for standard input");
  app->get_option("FILE")->required();
  app->add_flag("--json", flags->is_json, "print what is wrong as JSON instead of one line each");
  return {.app = app, .run = [flags] { return run_check(*flags); }};
}

}  // namespace magi::cli
