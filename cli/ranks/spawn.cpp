// SPDX-License-Identifier: Apache-2.0
#include "ranks/spawn.hpp"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <iostream>
#include <optional>
#include <string>
#include <thread>

#include "common/exit.hpp"
#include "common/files.hpp"
#include "common/shared_memory.hpp"
#include "magi/error.hpp"

namespace magi::cli {
namespace {

using Clock = std::chrono::steady_clock;

/// The time that ranks need to end by themselves after one has failed.
constexpr std::chrono::milliseconds kGrace(1000);
constexpr std::chrono::milliseconds kPause(10);

/// Why a rank stopped early; kind 0 while it runs well.
struct RankFault {
  std::int32_t kind = 0;  ///< the exit code it means
  std::array<char, 500> message{};
};

/// Runs `body` and leaves with its outcome; never returns into the caller's stack.
[[noreturn]] void live_as_rank(std::int32_t rank, RankFault& fault,
                               const std::function<void(std::int32_t)>& body) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto note = [&](Exit kind, const char* message) {
    std::strncpy(fault.message.data(), message, fault.message.size() - 1);
    fault.kind = static_cast<std::int32_t>(kind);
  };
  try {
    body(rank);
  } catch (const InternalError& error) {
    note(Exit::CheckFailed, error.what());
  } catch (const InvalidArgument& error) {
    note(Exit::Usage, error.what());
  } catch (const std::exception& error) {
    note(Exit::Unfit, error.what());
  }
  std::cerr.flush();
  ::_exit(fault.kind);
}

/// The processes of all ranks. Those that have not ended when it goes are ended.
class RankProcesses {
 public:
  RankProcesses(std::int32_t num_ranks, RankFault* faults,
                const std::function<void(std::int32_t)>& body) {
    for (std::int32_t rank = 0; rank < num_ranks; ++rank) {
      const pid_t child = ::fork();
      if (child == 0) live_as_rank(rank, faults[rank], body);
      if (child < 0) {
        const std::string reason = std::strerror(errno);
        end_all();
        throw EnvironmentUnfit("rank " + std::to_string(rank) + " cannot start: " + reason);
      }
      ranks_.push_back({.process = child});
    }
  }
  ~RankProcesses() { end_all(); }
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  struct Rank {
    pid_t process = 0;
    std::optional<int> status;  ///< once it has ended by itself
    bool is_ended_by_us = false;
    std::optional<Clock::time_point> stopped;  ///< since when

    bool is_running() const { return !status && !is_ended_by_us; }
    bool has_failed() const { return status && *status != 0; }
    bool is_ended_while_stopped() const { return is_ended_by_us && stopped; }
  };
  const std::vector<Rank>& ranks() const { return ranks_; }

  /// Waits until all have ended; false where the time is over that they had.
  bool wait(std::chrono::milliseconds deadline) {
    std::optional<Clock::time_point> first_end, first_failure;
    while (std::ranges::any_of(ranks_, &Rank::is_running)) {
      const auto now = Clock::now();
      for (Rank& rank : ranks_) {
        if (rank.is_running()) look_at(rank, now);
        if (rank.status && !first_end) first_end = now;
        if (rank.has_failed() && !first_failure) first_failure = now;
        if (rank.is_running() && rank.stopped && now - *rank.stopped > deadline) return false;
      }
      if (first_end && now - *first_end > deadline) return false;
      if (first_failure && now - *first_failure > kGrace) return false;
      std::this_thread::sleep_for(kPause);
    }
    return true;
  }

  void end_all() {
    for (Rank& rank : ranks_) {
      if (!rank.is_running()) continue;
      ::kill(rank.process, SIGKILL);
      while (::waitpid(rank.process, nullptr, 0) < 0 && errno == EINTR) {
      }
      rank.is_ended_by_us = true;
    }
  }

 private:
  static void look_at(Rank& rank, Clock::time_point now) {
    int status = 0;
    if (::waitpid(rank.process, &status, WNOHANG | WUNTRACED | WCONTINUED) <= 0) return;
    if (WIFSTOPPED(status)) {
      rank.stopped = now;
    } else if (WIFCONTINUED(status)) {
      rank.stopped.reset();
    } else {
      rank.status = status;
    }
  }

  std::vector<Rank> ranks_;
};

std::string name_of(std::size_t rank) { return "rank " + std::to_string(rank); }

/// A rank that failed because another did says so; the cause is the better message.
void throw_first_fault(const RankProcesses& processes, const RankFault* faults) {
  const auto& ranks = processes.ranks();
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].status && WIFSIGNALED(*ranks[r].status)) {
      throw InternalError(name_of(r) + " was ended by signal " +
                          std::to_string(WTERMSIG(*ranks[r].status)));
    }
  }
  for (const Exit kind : {Exit::CheckFailed, Exit::Usage, Exit::Unfit}) {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      const RankFault& fault = faults[r];
      if (!ranks[r].status || fault.kind != static_cast<std::int32_t>(kind)) continue;
      const std::string text = name_of(r) + ": " + fault.message.data();
      if (kind == Exit::Unfit) throw EnvironmentUnfit(text);
      if (kind == Exit::Usage) throw InvalidArgument(text);
      throw InternalError(text);
    }
  }
}

}  // namespace

void spawn_ranks(std::int32_t num_ranks, std::chrono::milliseconds deadline,
                 const std::function<void(std::int32_t rank)>& body) {
  const SharedMemory memory(static_cast<std::size_t>(num_ranks) * sizeof(RankFault));
  auto* faults = reinterpret_cast<RankFault*>(memory.data());
  std::cout.flush();
  std::cerr.flush();
  RankProcesses processes(num_ranks, faults, body);
  const bool have_ended = processes.wait(deadline);
  processes.end_all();
  throw_first_fault(processes, faults);
  if (have_ended) return;
  // The others may only have waited for one that was stopped.
  const auto& ranks = processes.ranks();
  auto late = std::ranges::find_if(ranks, &RankProcesses::Rank::is_ended_while_stopped);
  if (late == ranks.end()) late = std::ranges::find_if(ranks, &RankProcesses::Rank::is_ended_by_us);
  throw EnvironmentUnfit(name_of(static_cast<std::size_t>(late - ranks.begin())) +
                         (late->stopped ? " was stopped" : " did not end") + " for " +
                         std::to_string(deadline.count()) + " ms and was ended");
}

}  // namespace magi::cli
