// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "common/exit.hpp"

namespace CLI {
class App;
}

// main.cpp calls run_command, which parses flags and runs one subcommand. Each is a file
// NAME_command.cpp that registers its flags (common/flags.hpp, common/values.hpp) and says how to
// run; longer ones have a folder of that name for their work. Data go to standard output, progress
// to standard error.
namespace magi::cli {

struct Command {
  CLI::App* app = nullptr;
  std::function<Exit()> run;
};

Command add_batch_command(CLI::App& parent);
Command add_bench_command(CLI::App& parent);
Command add_check_command(CLI::App& parent);
Command add_demo_command(CLI::App& parent);
Command add_doctor_command(CLI::App& parent);
Command add_memory_command(CLI::App& parent);
Command add_plan_command(CLI::App& parent);
Command add_show_command(CLI::App& parent);
Command add_simulate_command(CLI::App& parent);
Command add_verify_command(CLI::App& parent);

/// The whole command: parses, runs and turns every exception into one line on standard error and an
/// exit code.
int run_command(int argc, const char* const* argv);

}  // namespace magi::cli
