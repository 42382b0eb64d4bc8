// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace magi {

/// Rank and world size as torchrun or mpirun set them, and where their ranks can meet.
struct LaunchEnv {
  std::int32_t rank = 0;
  std::int32_t num_ranks = 1;
  std::string rendezvous;            ///< equal on all ranks of one launch
  std::int32_t local_rank = 0;       ///< among the launch's ranks on this machine
  std::int32_t num_local_ranks = 0;  ///< those ranks; 0 where the launcher does not tell
  std::string master_address = {};   ///< the host of rank 0; empty where it is not told
  bool is_mpirun = false;            ///< started by mpirun, not by torchrun
  std::int32_t master_port = 0;      ///< a port there that rank 0 may try first; 0 likewise
};
/// RANK / WORLD_SIZE / MASTER_PORT, or OMPI_COMM_WORLD_RANK / _SIZE; nothing when absent. With both
/// come LOCAL_RANK or OMPI_COMM_WORLD_LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Throws
/// InvalidArgument when they do not parse, or one launcher tells half and none tells both.
std::optional<LaunchEnv> launch_env();

/// The value of any variable; absent where it is not set.
std::optional<std::string> env_variable(const char* name);

/// MAGI_SHARED_KIB: the most shared memory that kernels for every GPU are chosen for, in KiB, so
/// that one GPU runs what others with less would; 1,024 where it is not set.
std::int32_t shared_kib_env();

/// MAGI_LOG_LEVEL: "off" (default), "error", "warn", "info", "debug".
std::string log_level_env();

/// MAGI_ATTENTION_COST_FILE: the path of a cost file; empty where it is not set.
inline constexpr const char* kCostFileVariable = "MAGI_ATTENTION_COST_FILE";
std::string cost_file_env();

}  // namespace magi
