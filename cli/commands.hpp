// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

namespace CLI {
class App;
}

// cli is the command `magi`. main.cpp calls run_command, which parses flags and runs one
// subcommand. Each is a file NAME_command.cpp that registers its flags (flags.hpp, values.hpp) and
// says how to run; longer ones have a folder of that name for their work. Data go to standard
// output, progress to standard error. Ranks are processes (rank_processes.hpp) that compute on the
// host or on a GPU each (rank_device.hpp).
namespace magi::cli {

/// Exit codes of the command.
enum class Exit : int {
  Ok = 0,
  CheckFailed = 1,  ///< a result is wrong
  Usage = 2,        ///< the call is wrong
  Unfit = 3,        ///< the machine cannot do it
};

struct Command {
  CLI::App* app = nullptr;
  std::function<Exit()> run;
};

Command add_bench_command(CLI::App& parent);
/// Of `bench`.
Command add_dist_bench_command(CLI::App& parent);
Command add_check_command(CLI::App& parent);
Command add_demo_command(CLI::App& parent);
Command add_doctor_command(CLI::App& parent);
Command add_plan_command(CLI::App& parent);
Command add_show_command(CLI::App& parent);
Command add_simulate_command(CLI::App& parent);
Command add_verify_command(CLI::App& parent);

/// The whole command: parses, runs and turns every exception into one line on standard error and an
/// exit code.
int run_command(int argc, const char* const* argv);

}  // namespace magi::cli
