// SPDX-License-Identifier: Apache-2.0
#include "cli/run_magi.hpp"

#include <sys/wait.h>

#include <cstdlib>

#include "cli/temporary_folder.hpp"

namespace magi::testing {

Outcome run_magi(const std::string& arguments, const std::string& variables,
                 const std::string& input) {
  const TemporaryFolder folder;
  folder.write("in", input);
  // A launcher's variables around the test run must not reach the command.
  const std::string clean =
      "unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_PORT OMPI_COMM_WORLD_RANK "
      "OMPI_COMM_WORLD_SIZE PMI_RANK PMI_SIZE SLURM_STEP_ID MAGI_ATTENTION_COST_FILE; ";
  // Redirections in `arguments` come later and win.
  const std::string line = clean + variables + " timeout 120 " MAGI_COMMAND " < " +
                           folder.path("in") + " > " + folder.path("out") + " 2> " +
                           folder.path("err") + " " + arguments;
  const int status = std::system(line.c_str());
  Outcome outcome;
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.out = folder.read("out");
  outcome.err = folder.read("err");
  return outcome;
}

}  // namespace magi::testing
