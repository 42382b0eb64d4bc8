// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/engine/engine.hpp"
#include "magi/comm.hpp"
#include "support/comm_error.hpp"
#include "support/refusal.hpp"

namespace magi::testing {

/// How the ranks of a test run.
/// Bytes: the least that a supplier's table may give. Nccl: over a library that stands for NCCL, in
/// host memory.
enum class Backend { Threads, Shm, Bytes, Nccl };
std::string backend_name(Backend backend);

/// What one rank does in a test. Failed expectations and exceptions of any rank fail the test.
using RankBody = std::function<void(Communicator&)>;

struct GroupSetup {
  std::int32_t num_ranks = 1;
  CommOptions options{.deadline = std::chrono::seconds(20)};
  std::size_t max_ring_bytes = std::size_t{64} << 20;
  /// Ranks that are expected to be killed.
  std::vector<std::int32_t> killed = {};
  comm::EngineOptions engine() const { return {options, max_ring_bytes}; }
};

/// Runs `body` on every rank of a new group, in threads of this process or in forked processes,
/// under a hard time limit.
void run_ranks(Backend backend, const GroupSetup& setup, const RankBody& body);

/// Runs `body(rank)` in one forked process per rank and expects each to end well, or killed where
/// listed.
void run_processes(std::int32_t num_ranks, const std::function<void(std::int32_t)>& body,
                   const std::vector<std::int32_t>& killed = {});

/// A name that no other test run uses.
std::string unique_name();
/// A place where no other test meets.
TcpPlace unique_place();

/// What a rank gives: `count` bytes, other ones on each rank.
std::vector<std::byte> bytes_of(std::int32_t rank, std::size_t count);

/// The failure that `group` tells within 20 s.
CommError await_failure(const Communicator& group);

}  // namespace magi::testing
