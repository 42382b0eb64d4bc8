// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "board.hpp"
#include "magi/comm.hpp"

// What a rank of a trial does: steps of attention under random masks, forward and backward, until
// its group fails; then the same in a new group.
namespace magi::reliability {

/// What goes wrong with one of the ranks.
enum class Fault : std::int32_t {
  Killed,       ///< SIGKILL at a random moment
  Stopped,      ///< SIGSTOP likewise
  Absent,       ///< does not come to a step
  OtherPlan,    ///< comes to a step with another mask
  OutOfMemory,  ///< its allocator has nothing left in a step; GPUs alone
  None,
};
const char* fault_name(Fault fault);

enum class Transport : std::int32_t { Shm, Nvlink };

struct Trial {
  std::string name;  ///< no other trial has it
  std::uint64_t seed = 0;
  Fault fault = Fault::None;
  std::int32_t faulty_rank = 0;
  std::int64_t fault_step = 0;  ///< of faults that a rank commits itself
  Transport transport = Transport::Shm;
  std::int32_t num_ranks = 4;
  std::chrono::milliseconds deadline{1000};
};

/// The group of a rank in a process of its own, on GPU `rank` where the transport needs one. The
/// ranks meet under `name`.
std::unique_ptr<Communicator> join(const Trial& trial, const std::string& name, std::int32_t rank);

/// Runs step after step until the group fails, tells of it, and joins a new one, which has to give
/// the first step's bits. Throws what nobody expects.
void live(const Trial& trial, std::int32_t rank, Board& board);
/// A rank in the place of the faulty one, in the new group alone.
void replace(const Trial& trial, Board& board);

/// `count` steps, alternately in each of the groups, several of them under way at a time.
struct Soak {
  std::span<const std::unique_ptr<Communicator>> groups;
  std::int32_t device = -1;  ///< host memory
  std::uint64_t seed = 0;
  std::int64_t count = 0;
};
/// Throws what goes wrong.
void soak(const Soak& run, RankReport& report);

}  // namespace magi::reliability
