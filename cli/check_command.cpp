// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <chrono>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "bounds/bounds.hpp"
#include "commands.hpp"
#include "common/files.hpp"
#include "common/flags.hpp"
#include "draw/numbers.hpp"
#include "magi/plan.hpp"

namespace magi::cli {
namespace {

struct CheckFlags {
  std::string file;
  bool is_finding_bounds = false;
  bool is_json = false;
};

std::string ratio_text(double value, double bound) {
  if (bound == 0.0) return value == 0.0 ? "reached" : "nothing is proven";
  std::ostringstream text;
  text << std::fixed << std::setprecision(3) << value / bound << " times the bound";
  return text.str();
}

void write_bounds(std::ostream& out, const Plan& plan, const PlanBounds& bounds) {
  const PlanReport& report = plan.report;
  const auto bytes = [&](const char* name, std::int64_t bound) {
    out << std::left << std::setw(12) << name << draw::bytes_text(report.total_bytes) << " moved, "
        << draw::bytes_text(bound) << " at least: "
        << ratio_text(static_cast<double>(report.total_bytes), static_cast<double>(bound)) << '\n';
  };
  const auto seconds = [&](const char* name, double value, double bound) {
    out << std::left << std::setw(12) << name << draw::seconds_text(value) << " predicted, "
        << draw::seconds_text(bound) << " at least: " << ratio_text(value, bound) << '\n';
  };
  out << "bounds of plans that move keys alone, with these chunks and no larger rank\n";
  bytes("placed", bounds.bytes);
  bytes("in order", bounds.contiguous_bytes);
  bytes("as here", bounds.layout_bytes);
  out << std::setw(12) << "balance" << report.balance << ", " << bounds.balance
      << " at least: " << ratio_text(report.balance, bounds.balance) << '\n';
  seconds("forward", report.forward_seconds, bounds.forward_seconds);
  seconds("backward", report.backward_seconds, bounds.backward_seconds);
}

nlohmann::json bounds_json(const PlanBounds& bounds) {
  return {{"rows", bounds.rows},
          {"bytes", bounds.bytes},
          {"contiguous_bytes", bounds.contiguous_bytes},
          {"layout_bytes", bounds.layout_bytes},
          {"balance", bounds.balance},
          {"forward_seconds", bounds.forward_seconds},
          {"backward_seconds", bounds.backward_seconds}};
}

Exit run_check(const CheckFlags& flags) {
  const Plan plan = plan_tables_from_json(read_file("FILE", flags.file));
  const auto start = std::chrono::steady_clock::now();
  const std::vector<std::string> problems = check_plan(plan);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  std::cerr << "checked in " << draw::seconds_text(elapsed.count()) << '\n';
  std::optional<PlanBounds> bounds;
  if (flags.is_finding_bounds && problems.empty()) bounds = find_bounds(plan);
  if (flags.is_json) {
    nlohmann::json result = {{"is_sound", problems.empty()}, {"problems", problems}};
    if (bounds) result["bounds"] = bounds_json(*bounds);
    std::cout << result.dump(1) << '\n';
  } else if (problems.empty()) {
    std::cout << "sound\n";
    if (bounds) write_bounds(std::cout, plan, *bounds);
  } else {
    for (const std::string& problem : problems) std::cout << problem << '\n';
  }
  return problems.empty() ? Exit::Ok : Exit::CheckFailed;
}

}  // namespace

Command add_check_command(CLI::App& parent) {
  CLI::App* app =
      parent.add_subcommand("check", "Check a plan file against its mask with code of its own");
  app->footer("Example:\n  magi plan --tokens 4096 --causal --json | magi check -");
  const auto flags = std::make_shared<CheckFlags>();
  add_path(*app, "FILE", "", flags->file, "a plan as JSON; - for standard input");
  app->get_option("FILE")->required();
  app->add_flag("--bounds", flags->is_finding_bounds,
                "tell how far the plan is from what none can be below (some seconds)");
  app->add_flag("--json", flags->is_json, "print what is wrong as JSON instead of one line each");
  return {.app = app, .run = [flags] { return run_check(*flags); }};
}

}  // namespace magi::cli
