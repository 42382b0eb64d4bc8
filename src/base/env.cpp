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

std::optional<LaunchEnv> launch_env_from(const char* rank_name, const char* size_name,
                                         const char* id_name) {
  const char* rank = std::getenv(rank_name);
  const char* size = std::getenv(size_name);
  if (rank == nullptr || size == nullptr) return std::nullopt;
  LaunchEnv env{.rank = parse_env_int(rank_name, rank),
                .num_ranks = parse_env_int(size_name, size)};
  if (env.num_ranks < 1) throw invalid(size_name, env.num_ranks, "1 or more");
  if (env.rank < 0 || env.rank >= env.num_ranks) {
    throw invalid(rank_name, env.rank, "0 to " + std::to_string(env.num_ranks - 1));
  }
  const char* id = std::getenv(id_name);
  env.rendezvous = id != nullptr ? id : "default";
  return env;
}

}  // namespace

std::optional<LaunchEnv> launch_env() {
  if (auto env = launch_env_from("RANK", "WORLD_SIZE", "MASTER_PORT")) return env;
  return launch_env_from("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_MCA_ess_base_jobid");
}

std::string log_level_env() {
  const char* level = std::getenv("MAGI_LOG_LEVEL");
  return level != nullptr ? level : "warn";
}

}  // namespace magi
