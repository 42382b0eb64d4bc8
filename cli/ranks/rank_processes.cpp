// SPDX-License-Identifier: Apache-2.0
#include "ranks/rank_processes.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>

#include "common/files.hpp"
#include "magi/attention_limits.hpp"
#include "ranks/mpi_group.hpp"
#include "ranks/spawn.hpp"

namespace magi::cli {
namespace {

constexpr std::int32_t kMostGpus = 64;

bool has_kernels(std::int32_t device) {
  try {
    attention_limits(device);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

std::shared_ptr<Communicator> make_group(const RankProcesses& ranks, const LaunchEnv& launch) {
  if (ranks.is_over_mpi) return make_mpi_group(ranks.deadline);
  const Bootstrap bootstrap =
      local_bootstrap(launch.rendezvous, launch.rank, launch.num_ranks, ranks.deadline);
  return make_shm_group(launch.rank, launch.num_ranks, bootstrap, {.deadline = ranks.deadline});
}

}  // namespace

void run_rank_processes(const RankProcesses& ranks,
                        const std::function<void(const std::shared_ptr<Communicator>&)>& body) {
  const auto run = [&](const LaunchEnv& launch) {
    const std::shared_ptr<Communicator> group = make_group(ranks, launch);
    body(group);
    group->close_sync();
  };
  if (ranks.launched) {
    run(*ranks.launched);
    return;
  }
  const std::string rendezvous = "magi-" + ranks.name + "-" + std::to_string(::getpid());
  spawn_ranks(ranks.num_ranks, ranks.deadline, [&](std::int32_t rank) {
    run({.rank = rank, .num_ranks = ranks.num_ranks, .rendezvous = rendezvous});
  });
}

std::int32_t count_gpus() {
  std::cout.flush();
  std::cerr.flush();
  const pid_t child = ::fork();
  if (child == 0) {
    std::int32_t count = 0;
    while (count < kMostGpus && has_kernels(count)) ++count;
    ::_exit(count);
  }
  if (child < 0) throw EnvironmentUnfit(std::string("no process: ") + std::strerror(errno));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

}  // namespace magi::cli
