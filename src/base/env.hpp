// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace magi {

/// Rank and world size as torchrun or mpirun set them.
struct LaunchEnv {
  std::int32_t rank = 0;
  std::int32_t num_ranks = 1;
  std::string rendezvous;  ///< equal on all ranks of one launch
};
/// RANK / WORLD_SIZE / MASTER_PORT, or OMPI_COMM_WORLD_RANK / _SIZE; nothing when absent. Throws
/// InvalidArgument when they do not parse.
std::optional<LaunchEnv> launch_env();

/// MAGI_LOG_LEVEL: "error", "warn" (default), "info", "debug".
std::string log_level_env();

}  // namespace magi
