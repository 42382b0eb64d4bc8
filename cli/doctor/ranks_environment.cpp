// SPDX-License-Identifier: Apache-2.0
#include "doctor/ranks_environment.hpp"

#include <charconv>
#include <string_view>

#include "base/check.hpp"
#include "base/words.hpp"

namespace magi::cli {
namespace {

/// The variables of a launcher. The library reads those of the first two (launch_env).
struct Names {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  bool is_read;
};
constexpr Names kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", true},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", true},
    {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", false},
    {"slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", false},
};
constexpr const char* kOthers[] = {"MASTER_ADDR", "MASTER_PORT", "SLURM_STEP_ID",
                                   "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"};

/// The variables of one launcher.
struct Launch {
  const Names* names = nullptr;
  std::int32_t rank = 0;
  std::int32_t size = 1;
  std::optional<std::int32_t> local_rank;
  std::optional<std::int32_t> local_size;
};

std::string sentence(std::string_view name, const std::string& value, std::string_view allowed) {
  return invalid(name, value, allowed).what();
}

class Reader {
 public:
  Reader(const EnvLookup& lookup, RanksEnvironment& found) : lookup_(lookup), found_(found) {}

  bool has(const char* name) const { return lookup_(name).has_value(); }

  /// Absent where it is not set, or is no integer from `low` on, which is a finding.
  std::optional<std::int32_t> integer(const char* name, std::int32_t low) {
    const std::optional<std::string> text = lookup_(name);
    if (!text) return std::nullopt;
    std::int32_t value = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (error == std::errc{} && end == text->data() + text->size() && value >= low) return value;
    add(sentence(name, "'" + *text + "'", "an integer from " + std::to_string(low)));
    return std::nullopt;
  }

  void add(const std::string& finding) { found_.findings.push_back(finding); }
  void note(const std::string& text) { found_.notes.push_back(text); }

  std::optional<Launch> read(const Names& names);
  void compare(const Launch& one, const Launch& other);
  void check_meeting(const Launch& ranks);
  void check_machine(const Launch& ranks, std::int32_t num_gpus, std::int32_t num_cores);

 private:
  const EnvLookup& lookup_;
  RanksEnvironment& found_;
};

std::optional<Launch> Reader::read(const Names& names) {
  // In a script of sbatch the variables stand for tasks that srun has not started yet.
  if (names.launcher == std::string_view("slurm") && !has("SLURM_STEP_ID")) return std::nullopt;
  if (names.is_read && has(names.rank) != has(names.size)) {
    const bool has_rank = has(names.rank);
    add(sentence(has_rank ? names.size : names.rank,
                 std::string("not set, but ") + (has_rank ? names.rank : names.size) + " is",
                 "both or neither"));
  }
  const auto rank = integer(names.rank, 0), size = integer(names.size, 1);
  Launch launch{.names = &names,
                .local_rank = integer(names.local_rank, 0),
                .local_size = integer(names.local_size, 1)};
  if (!rank || !size) return std::nullopt;
  launch.rank = *rank;
  launch.size = *size;
  if (launch.rank >= launch.size) {
    add(sentence(names.rank, std::to_string(launch.rank),
                 "0 to " + std::to_string(launch.size - 1) + ", as " + names.size + " is " +
                     std::to_string(launch.size)));
  }
  if (launch.local_size && *launch.local_size > launch.size) {
    add(sentence(names.local_size, std::to_string(*launch.local_size),
                 "at most " + std::to_string(launch.size) + ", as " + names.size));
  }
  if (launch.local_rank && launch.local_size && *launch.local_rank >= *launch.local_size) {
    add(sentence(names.local_rank, std::to_string(*launch.local_rank),
                 "0 to " + std::to_string(*launch.local_size - 1) + ", as " + names.local_size +
                     " is " + std::to_string(*launch.local_size)));
  }
  return launch;
}

/// Two launchers of one process: a torchrun on each of slurm's nodes has another size than slurm.
void Reader::compare(const Launch& one, const Launch& other) {
  if (one.size != other.size) {
    if (one.names->is_read && other.names->is_read) {
      add(sentence(one.names->size,
                   std::to_string(one.size) + " and " + other.names->size + " is " +
                       std::to_string(other.size),
                   "the same"));
    }
    return;
  }
  if (one.rank == other.rank) return;
  add(sentence(
      one.names->rank,
      std::to_string(one.rank) + " and " + other.names->rank + " is " + std::to_string(other.rank),
      "the same, of " + counted(one.size, "rank")));
}

/// Ranks of several machines need the address and port of one of them.
void Reader::check_meeting(const Launch& ranks) {
  const auto port = integer("MASTER_PORT", 1);
  if (port && *port > 65535) add(sentence("MASTER_PORT", std::to_string(*port), "1 to 65535"));
  if (ranks.size == 1 || ranks.local_size == ranks.size) return;
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) {
    if (has(name)) continue;
    add(sentence(name, "not set",
                 "the host of rank 0 and a port there, as not all " + counted(ranks.size, "rank") +
                     " are said to be on this machine"));
    return;
  }
}

void Reader::check_machine(const Launch& ranks, std::int32_t num_gpus, std::int32_t num_cores) {
  if (ranks.local_rank && num_gpus > 1 && *ranks.local_rank >= num_gpus) {
    add(sentence(ranks.names->local_rank, std::to_string(*ranks.local_rank),
                 "0 to " + std::to_string(num_gpus - 1) + ", as this process sees " +
                     counted(num_gpus, "GPU")));
  }
  if (num_gpus > 0 && ranks.local_size.value_or(1) > num_gpus) {
    note(counted(*ranks.local_size, "rank") + " of this machine see " + counted(num_gpus, "GPU") +
         " each: either one of its own, or they share");
  }
  const auto threads = integer("OMP_NUM_THREADS", 1);
  const std::int32_t local = ranks.local_size.value_or(1);
  if (threads && std::int64_t{*threads} * local > num_cores) {
    note("OMP_NUM_THREADS is " + std::to_string(*threads) + " in each of " +
         counted(local, "rank") + ", more threads than the " + counted(num_cores, "core"));
  }
}

}  // namespace

RanksEnvironment read_ranks_environment(const EnvLookup& lookup, std::int32_t num_gpus,
                                        std::int32_t num_cores) {
  RanksEnvironment found;
  Reader reader(lookup, found);
  std::vector<Launch> launches;
  for (const Names& names : kLaunchers) {
    for (const char* name : {names.rank, names.size, names.local_rank, names.local_size}) {
      if (const auto value = lookup(name)) found.variables.emplace_back(name, *value);
    }
    if (const auto one = reader.read(names)) launches.push_back(*one);
  }
  for (const char* name : kOthers) {
    if (const auto value = lookup(name)) found.variables.emplace_back(name, *value);
  }
  Launch ranks{.names = &kLaunchers[0]};
  if (!launches.empty()) {
    ranks = launches[0];
    found.launcher = ranks.names->launcher;
    found.rank = ranks.rank;
    found.num_ranks = ranks.size;
    for (std::size_t i = 1; i < launches.size(); ++i) reader.compare(ranks, launches[i]);
    if (!ranks.names->is_read && ranks.size > 1) {
      reader.add(sentence("RANK",
                          std::string("not set, and ") + ranks.names->size + " is " +
                              std::to_string(ranks.size) + ", so that every process runs alone",
                          std::string("RANK and WORLD_SIZE, from ") + ranks.names->rank + " and " +
                              ranks.names->size));
    } else {
      reader.check_meeting(ranks);
    }
  }
  reader.check_machine(ranks, num_gpus, num_cores);
  const auto visible = lookup("CUDA_VISIBLE_DEVICES");
  if (visible && num_gpus == 0) {
    reader.note("CUDA_VISIBLE_DEVICES is '" + *visible + "' and no GPU is seen");
  }
  return found;
}

}  // namespace magi::cli
