// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/env.hpp"
#include "magi/comm.hpp"

// Ranks as processes of this machine: forked by the command, or started by a launcher.
namespace magi::cli {

/// The ranks of a run.
struct RankProcesses {
  std::optional<LaunchEnv> launched;  ///< where a launcher started this process as one of them
  std::int32_t num_ranks = 1;         ///< to fork where none did
  std::string name;                   ///< of the command, for the place where forked ranks meet
  std::chrono::seconds deadline{100};
  bool is_over_mpi = false;  ///< launched ranks meet and talk over MPI, else over shared memory
};

/// Runs `body` in every rank with a group over host memory, which it closes behind it; in a
/// launched process as its one rank, else in forked processes, with what spawn_ranks throws for
/// them. A process that forks must not have started threads or used a GPU before.
void run_rank_processes(const RankProcesses& ranks,
                        const std::function<void(const std::shared_ptr<Communicator>&)>& body);

/// GPUs that there are attention kernels for, those before the first without. Counted in a process
/// of its own, because CUDA does not outlive a fork.
std::int32_t count_gpus();

}  // namespace magi::cli
