// SPDX-License-Identifier: Apache-2.0
#include "base/env.hpp"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "base/check.hpp"

namespace magi {
namespace {

std::int32_t parse_env_int(const char* name, std::string_view text) {
  std::int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    throw invalid(name, text, "an integer");
  }
  return value;
}

/// The names of a launcher's variables.
struct LaunchNames {
  const char* rank;
  const char* size;
  const char* id;
  const char* local_rank;
  const char* local_size;
};
constexpr LaunchNames kTorchrun{"RANK", "WORLD_SIZE", "MASTER_PORT", "LOCAL_RANK",
                                "LOCAL_WORLD_SIZE"};
constexpr LaunchNames kMpirun{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                              "OMPI_MCA_ess_base_jobid", "OMPI_COMM_WORLD_LOCAL_RANK",
                              "OMPI_COMM_WORLD_LOCAL_SIZE"};

std::string env_text(const char* name, const char* otherwise) {
  return env_variable(name).value_or(otherwise);
}

std::int32_t env_int(const char* name, std::int32_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? parse_env_int(name, text) : otherwise;
}

void read_master(LaunchEnv& env) {
  env.master_address = env_text("MASTER_ADDR", "");
  env.master_port = env_int("MASTER_PORT", 0);
  if (env.master_port < 0 || env.master_port > 65535) {
    throw invalid("MASTER_PORT", env.master_port, "1 to 65535");
  }
  // torchrun's own store listens at the port; the next one is as good.
  const bool is_taken = env_text("TORCHELASTIC_USE_AGENT_STORE", "") == "True";
  if (is_taken && env.master_port > 0 && env.master_port < 65535) ++env.master_port;
}

/// A rank that does not hear of the others would compute alone what all are to share.
void refuse_half(const LaunchNames& names) {
  const char* rank = std::getenv(names.rank);
  const char* size = std::getenv(names.size);
  if (rank != nullptr && size == nullptr) {
    throw invalid(names.size, "not set",
                  std::string("a number of ranks, as ") + names.rank + " is " + rank);
  }
  if (rank == nullptr && size != nullptr) {
    throw invalid(names.rank, "not set", std::string("a rank, as ") + names.size + " is " + size);
  }
}

std::optional<LaunchEnv> launch_env_from(const LaunchNames& names) {
  const char* rank = std::getenv(names.rank);
  const char* size = std::getenv(names.size);
  if (rank == nullptr || size == nullptr) return std::nullopt;
  LaunchEnv env{.rank = parse_env_int(names.rank, rank),
                .num_ranks = parse_env_int(names.size, size)};
  if (env.num_ranks < 1) throw invalid(names.size, env.num_ranks, "1 or more");
  if (env.rank < 0 || env.rank >= env.num_ranks) {
    throw invalid(names.rank, env.rank, "0 to " + std::to_string(env.num_ranks - 1));
  }
  env.rendezvous = env_text(names.id, "default");
  env.local_rank = env_int(names.local_rank, 0);
  env.num_local_ranks = env_int(names.local_size, 0);
  read_master(env);
  return env;
}

}  // namespace

std::optional<LaunchEnv> launch_env() {
  if (auto env = launch_env_from(kTorchrun)) return env;
  if (auto env = launch_env_from(kMpirun)) {
    env->is_mpirun = true;
    return env;
  }
  refuse_half(kTorchrun);
  refuse_half(kMpirun);
  return std::nullopt;
}

std::optional<std::string> env_variable(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::optional<std::string>(text) : std::nullopt;
}

std::int32_t shared_kib_env() { return env_int("MAGI_SHARED_KIB", 1024); }

std::string log_level_env() { return env_text("MAGI_LOG_LEVEL", "off"); }

std::string cost_file_env() { return env_text(kCostFileVariable, ""); }

}  // namespace magi
