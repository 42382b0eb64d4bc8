// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "commands.hpp"

namespace magi::cli {
namespace {

/// Trainings are torch's, and so are their sizes: becomes the Python package's command.
Exit run_memory(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"python3", "-m", "magi_attention", "memory"});
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
