// SPDX-License-Identifier: Apache-2.0
#include "base/check.hpp"
#include "base/env.hpp"
#include "magi/comm.hpp"

namespace magi {
namespace {

Bootstrap meet_launched(const LaunchEnv& env, std::chrono::milliseconds deadline) {
  const std::string name = "magi-" + env.rendezvous;
  if (!env.master_address.empty() && env.master_port > 0) {
    return tcp_bootstrap({.address = env.master_address, .port = env.master_port, .name = name},
                         env.rank, env.num_ranks, deadline);
  }
  if (env.num_local_ranks == env.num_ranks) {
    return local_bootstrap(name, env.rank, env.num_ranks, deadline);
  }
  throw invalid(env.master_address.empty() ? "MASTER_ADDR" : "MASTER_PORT", "not set",
                "the host of rank 0 and a port there, on all ranks of several machines");
}

}  // namespace

std::optional<Launch> join_launch(std::chrono::milliseconds deadline) {
  const std::optional<LaunchEnv> env = launch_env();
  if (!env) return std::nullopt;
  return Launch{.rank = env->rank,
                .num_ranks = env->num_ranks,
                .local_rank = env->local_rank,
                .bootstrap = meet_launched(*env, deadline)};
}

}  // namespace magi
