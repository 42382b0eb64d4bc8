// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace magi::cli {

/// The value of a variable; absent where it is not set.
using EnvLookup = std::function<std::optional<std::string>(const char* name)>;

/// The variables of launchers: what they say of this process, and where they contradict each other.
struct RanksEnvironment {
  std::string launcher;  ///< "torchrun", "mpirun", "MPICH" or "slurm"; empty: none
  std::int32_t rank = 0;
  std::int32_t num_ranks = 1;
  /// Those that are set, in the order of a fixed list.
  std::vector<std::pair<std::string, std::string>> variables;
  /// One sentence for each contradiction: ranks would not meet, or not as they were started.
  std::vector<std::string> findings;
  /// Remarks: what may surprise and is no mistake.
  std::vector<std::string> notes;
};

/// num_gpus: those that this process sees.
RanksEnvironment read_ranks_environment(const EnvLookup& lookup, std::int32_t num_gpus,
                                        std::int32_t num_cores);

}  // namespace magi::cli
