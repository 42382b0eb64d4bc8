// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "commands.hpp"

namespace magi::cli {
namespace {

/// What `-m magi_attention` does, but a python3 without the package says so in a sentence.
constexpr const char* kRun = R"(import importlib.util, runpy, sys
if importlib.util.find_spec("magi_attention") is None:
    print(f"magi: {sys.executable} has no package magi_attention; allowed: a python3 that has it, "
          "first on PATH; try: activate its environment", file=sys.stderr)
    sys.exit(3)
runpy.run_module("magi_attention", run_name="__main__", alter_sys=True))";

/// Trainings are torch's, and so are their sizes: becomes the Python package's command.
Exit run_memory(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"python3", "-c", kRun, "memory"});
  std::vector<char*> given;
  for (std::string& argument : arguments) given.push_back(argument.data());
  given.push_back(nullptr);
  ::execvp(given.front(), given.data());
  throw std::runtime_error("python3 does not start; allowed: one on PATH with magi_attention");
}

}  // namespace

Command add_memory_command(CLI::App& parent) {
  CLI::App* app =
      parent.add_subcommand("memory", "Predict what a training takes of a GPU (Python package)");
  app->prefix_command();
  app->set_help_flag();
  return {.app = app, .run = [app] { return run_memory(app->remaining()); }};
}

}  // namespace magi::cli
