// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "rank_life.hpp"

// Ranks as processes, and who watches them. The process that calls this has no thread and never
// calls CUDA, since both do not outlive a fork.
namespace magi::reliability {

/// Runs a trial. Returns what was not as promised, or nothing: each rank but the faulty one ends
/// with an error that names itself, the faulty rank and the part it was in, in time; then its
/// process works in a new group.
std::string run_trial(const Trial& trial);

struct SoakRun {
  Transport transport = Transport::Shm;
  bool are_threads = false;  ///< of one process, which share GPU 0 over nvlink
  std::int32_t num_ranks = 4;
  std::int32_t num_groups = 2;
  std::uint64_t seed = 0;
  std::int64_t count = 0;
};

struct SoakOutcome {
  std::int64_t steps = 0;       ///< of the slowest rank
  bool is_hung = false;         ///< no rank did a step for a minute
  std::string trouble;          ///< what a rank threw
  std::int64_t growth_kib = 0;  ///< of the worst rank, from a fifth of the way to the end
};
SoakOutcome run_soak(const SoakRun& run);

}  // namespace magi::reliability
