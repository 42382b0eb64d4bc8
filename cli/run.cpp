// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <iostream>
#include <new>
#include <string>
#include <vector>

#include "commands.hpp"
#include "common/files.hpp"
#include "common/values.hpp"
#include "magi/error.hpp"

namespace magi::cli {
namespace {

Exit fail(Exit code, const std::string& message) {
  std::cerr << "magi: " << message << '\n';
  return code;
}

/// Output that did not reach its reader is a failure, whatever was computed.
Exit flushed(Exit code) {
  std::cout.flush();
  if (code == Exit::Ok && !std::cout) return fail(Exit::Unfit, "writing standard output failed");
  return code;
}

/// Says what is wrong with an option that was not given once with its value; empty for another
/// error.
std::string count_error(const CLI::App& app, const CLI::ParseError& error) {
  const std::string text = error.what();
  const std::string name = text.substr(0, text.find(':'));
  const CLI::Option* option = app.get_option_no_throw(name);
  if (error.get_name() != "ArgumentMismatch" || option == nullptr) return "";
  if (option->count() < 2) return name + " is given without its value";
  return name + " is given " + std::to_string(option->count()) + " times; allowed: once";
}

/// The parser's error in a sentence of this program's, which names the command that has the help.
std::string usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* command = &app;
  std::string name = app.get_name();
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    name += " " + command->get_name();
  }
  const std::vector<std::string> unknown = app.remaining(true);
  if (!unknown.empty()) return shown(unknown.front()) + " is unknown; see " + name + " --help";
  if (command->get_require_subcommand_min() > 0) {
    return "no subcommand is given; see " + name + " --help";
  }
  const std::string count = count_error(*command, error);
  return count.empty() ? error.what() + ("; see " + name + " --help") : count;
}

Exit run_parsed(const std::vector<Command>& commands) {
  for (const Command& command : commands) {
    if (command.app->parsed()) return flushed(command.run());
  }
  return fail(Exit::Usage, "no subcommand is given; see magi --help");
}

Exit parse_and_run(CLI::App& app, const std::vector<Command>& commands, int argc,
                   const char* const* argv) {
  try {
    app.parse(argc, argv);
    return run_parsed(commands);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return flushed(Exit::Ok);
  } catch (const CLI::CallForVersion& version) {
    std::cout << version.what() << '\n';
    return flushed(Exit::Ok);
  } catch (const CLI::ParseError& error) {
    return fail(Exit::Usage, usage_error(app, error));
  } catch (const InvalidArgument& error) {
    return fail(Exit::Usage, error.what());
  } catch (const InternalError& error) {
    return fail(Exit::CheckFailed, error.what());
  } catch (const std::bad_alloc&) {
    return fail(Exit::Unfit, "out of memory");
  } catch (const std::exception& error) {
    return fail(Exit::Unfit, error.what());
  }
}

}  // namespace

int run_command(int argc, const char* const* argv) {
  CLI::App app("Exact attention over long sequences, with any mask, on many ranks.", "magi");
  app.set_version_flag("--version", MAGI_VERSION);
  app.require_subcommand(0, 1);
  app.footer("magi COMMAND --help shows options and an example.");
  const std::vector<Command> commands = {add_batch_command(app),    add_bench_command(app),
                                         add_check_command(app),    add_demo_command(app),
                                         add_doctor_command(app),   add_memory_command(app),
                                         add_plan_command(app),     add_show_command(app),
                                         add_simulate_command(app), add_verify_command(app)};
  return static_cast<int>(parse_and_run(app, commands, argc, argv));
}

}  // namespace magi::cli
