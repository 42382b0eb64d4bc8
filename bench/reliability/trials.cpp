// SPDX-License-Identifier: Apache-2.0
#include "trials.hpp"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <iostream>
#include <new>
#include <thread>
#include <vector>

#include "base/random.hpp"
#include "kernels/cpu/attention.hpp"
#include "magi/error.hpp"

namespace magi::reliability {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kPoll = milliseconds(2);
constexpr auto kStart = seconds(60);       ///< for ranks to join and do a step
constexpr auto kSlack = seconds(10);       ///< how long a late error is waited for
constexpr auto kNewGroup = seconds(60);    ///< for ranks to work in the new group and end
constexpr auto kNoProgress = seconds(60);  ///< a soak that does nothing for so long hangs
constexpr auto kInTime = seconds(2);

/// A board in memory that forked processes share.
class SharedBoard {
 public:
  SharedBoard()
      : memory_(mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                     0)) {
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~SharedBoard() { munmap(memory_, sizeof(Board)); }
  SharedBoard(const SharedBoard&) = delete;
  SharedBoard& operator=(const SharedBoard&) = delete;
  Board* operator->() const { return static_cast<Board*>(memory_); }
  Board& operator*() const { return *static_cast<Board*>(memory_); }

 private:
  void* memory_;
};

/// Processes by rank; those that are left at the end are killed.
class Children {
 public:
  ~Children() {
    for (const pid_t child : children_) end(child);
  }
  void start(const std::function<void()>& body, RankReport& report) {
    const pid_t child = fork();
    if (child < 0) throw InternalError("fork failed");
    if (child == 0) run(body, report);
    children_.push_back(child);
  }
  pid_t at(std::int32_t rank) const { return children_[static_cast<std::size_t>(rank)]; }
  void kill_one(std::int32_t rank) {
    pid_t& child = children_[static_cast<std::size_t>(rank)];
    end(child);
    child = 0;
  }
  /// Whether all end well in time.
  bool all_end(seconds limit) {
    const auto end = std::chrono::steady_clock::now() + limit;
    bool is_well = true;
    for (pid_t& child : children_) {
      int status = 0;
      while (child > 0 && waitpid(child, &status, WNOHANG) == 0) {
        if (std::chrono::steady_clock::now() > end) return false;
        std::this_thread::sleep_for(kPoll);
      }
      is_well = is_well && (child == 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
      child = 0;
    }
    return is_well;
  }

 private:
  [[noreturn]] static void run(const std::function<void()>& body, RankReport& report) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    cpu::set_num_threads(1);
    int code = 0;
    try {
      body();
    } catch (const std::exception& error) {
      report.tell(error.what());
      code = 1;
    }
    _exit(code);
  }
  static void end(pid_t child) {
    if (child <= 0) return;
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }

  std::vector<pid_t> children_;
};

/// Waits until `is_so` holds for all ranks but one.
template <typename IsSo>
bool await_all(const Trial& trial, const Board& board, std::int32_t but, seconds limit,
               const IsSo& is_so) {
  const auto end = std::chrono::steady_clock::now() + limit;
  for (std::int32_t rank = 0; rank < trial.num_ranks;) {
    if (rank == but || is_so(board.ranks[static_cast<std::size_t>(rank)])) {
      ++rank;
    } else if (std::chrono::steady_clock::now() > end) {
      return false;
    } else {
      std::this_thread::sleep_for(kPoll);
    }
  }
  return true;
}

bool names(const std::string& text, std::initializer_list<const char*> any) {
  return std::ranges::any_of(
      any, [&](const char* word) { return text.find(word) != std::string::npos; });
}

/// What is wrong with a rank's error.
std::string judge(const Trial& trial, std::int32_t rank, const Board& board) {
  const RankReport& report = board.ranks[static_cast<std::size_t>(rank)];
  const std::string text = report.text.data();
  const std::string who = "rank " + std::to_string(rank);
  const std::string faulty = "rank " + std::to_string(trial.faulty_rank);
  if (report.error_ns == 0) return who + " got no error (" + text + ")";
  const bool is_waited = trial.fault == Fault::Stopped || trial.fault == Fault::Absent;
  const auto limit = kInTime + (is_waited ? trial.deadline : milliseconds(0));
  const std::chrono::nanoseconds took(report.error_ns - board.fault_ns);
  if (took > limit) {
    return who + " was told after " +
           std::to_string(std::chrono::duration_cast<milliseconds>(took).count()) + " ms: " + text;
  }
  // Ranks that hold different plans are named on all ranks alike.
  const bool is_self_named = trial.fault == Fault::OtherPlan || names(text, {who.c_str()});
  if (!is_self_named || !names(text, {faulty.c_str()}) ||
      !names(text, {"stage ", "pass ", "allgather", "plan "})) {
    return who + " was not told by whom and where: " + text;
  }
  return "";
}

bool is_gone(Fault fault) {
  return fault == Fault::Killed || fault == Fault::Stopped || fault == Fault::Absent;
}

void commit(const Trial& trial, const Children& children, Board& board) {
  if (trial.fault != Fault::Killed && trial.fault != Fault::Stopped) return;
  RandomStream random(trial.seed ^ 0x5bd1e995);
  std::this_thread::sleep_for(std::chrono::microseconds(random.between(0, 60'000)));
  kill(children.at(trial.faulty_rank), trial.fault == Fault::Killed ? SIGKILL : SIGSTOP);
  board.fault_ns = now_ns();
}

}  // namespace

std::string run_trial(const Trial& trial) {
  const SharedBoard board;
  Children children;
  for (std::int32_t rank = 0; rank < trial.num_ranks; ++rank) {
    children.start([&, rank] { live(trial, rank, *board); },
                   board->ranks[static_cast<std::size_t>(rank)]);
  }
  const bool is_begun = await_all(trial, *board, -1, kStart, [](const RankReport& report) {
    return report.steps > 0 || report.error_ns != 0;
  });
  if (!is_begun) return std::string("the ranks did not begin: ") + board->ranks[0].text.data();
  commit(trial, children, *board);
  await_all(trial, *board, trial.faulty_rank, kSlack + seconds(5),
            [](const RankReport& report) { return report.error_ns != 0; });
  for (std::int32_t rank = 0; rank < trial.num_ranks; ++rank) {
    if (rank == trial.faulty_rank) continue;
    if (const std::string trouble = judge(trial, rank, *board); !trouble.empty()) return trouble;
  }
  RankReport& faulty = board->ranks[static_cast<std::size_t>(trial.faulty_rank)];
  if (is_gone(trial.fault)) {
    children.kill_one(trial.faulty_rank);
    children.start([&] { replace(trial, *board); }, faulty);
  }
  if (children.all_end(kNewGroup)) return "";
  for (std::int32_t rank = 0; rank < trial.num_ranks; ++rank) {
    const RankReport& report = board->ranks[static_cast<std::size_t>(rank)];
    if (report.has_new_group != 0) continue;
    return "rank " + std::to_string(rank) + " has no new group: " + report.text.data();
  }
  return "a process did not end";
}

namespace {

/// All ranks of a soak in this process.
void soak_threads(const SoakRun& run, Board& board) {
  std::vector<std::vector<std::unique_ptr<Communicator>>> bases;
  for (std::int32_t g = 0; g < run.num_groups; ++g) {
    bases.push_back(make_thread_group(run.num_ranks, {.deadline = kNoProgress / 2}));
  }
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(run.num_ranks));
  const auto body = [&](std::size_t rank) {
    cpu::set_num_threads(1);
    std::vector<std::unique_ptr<Communicator>> groups;
    for (auto& base : bases) {
      if (run.transport == Transport::Shm) {
        groups.push_back(std::move(base[rank]));
      } else {
        groups.push_back(make_nvlink_group(std::move(base[rank]), 0, {.deadline = seconds(30)}));
      }
    }
    const std::int32_t device = run.transport == Transport::Nvlink ? 0 : kCpuDevice;
    soak({.groups = groups, .device = device, .seed = run.seed, .count = run.count},
         board.ranks[rank]);
    for (const auto& group : groups) group->close_sync();
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < failures.size(); ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(rank);
        } catch (...) {
          failures[rank] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure != nullptr) std::rethrow_exception(failure);
  }
}

void soak_process(const SoakRun& run, const std::string& name, std::int32_t rank, Board& board) {
  const Trial trial{
      .transport = run.transport, .num_ranks = run.num_ranks, .deadline = kNoProgress / 2};
  std::vector<std::unique_ptr<Communicator>> groups;
  for (std::int32_t g = 0; g < run.num_groups; ++g) {
    groups.push_back(join(trial, name + "-" + std::to_string(g), rank));
  }
  const std::int32_t device = run.transport == Transport::Nvlink ? rank : kCpuDevice;
  soak({.groups = groups, .device = device, .seed = run.seed, .count = run.count},
       board.ranks[static_cast<std::size_t>(rank)]);
  for (const auto& group : groups) group->close_sync();
}

}  // namespace

SoakOutcome run_soak(const SoakRun& run) {
  const SharedBoard board;
  Children children;
  const std::string name = "soak-" + std::to_string(getpid());
  if (run.are_threads) {
    children.start([&] { soak_threads(run, *board); }, board->ranks[0]);
  } else {
    for (std::int32_t rank = 0; rank < run.num_ranks; ++rank) {
      children.start([&, rank] { soak_process(run, name, rank, *board); },
                     board->ranks[static_cast<std::size_t>(rank)]);
    }
  }
  SoakOutcome outcome;
  const auto steps = [&] {
    std::int64_t least = run.count;
    for (std::int32_t rank = 0; rank < run.num_ranks; ++rank) {
      least = std::min<std::int64_t>(least, board->ranks[static_cast<std::size_t>(rank)].steps);
    }
    return least;
  };
  auto progress = std::chrono::steady_clock::now();
  auto told = progress;
  while (!children.all_end(seconds(1))) {
    const auto now = std::chrono::steady_clock::now();
    if (const std::int64_t done = steps(); done != outcome.steps) {
      outcome.steps = done;
      progress = now;
    }
    for (const RankReport& report : board->ranks) {
      if (report.text[0] != '\0' && outcome.trouble.empty()) outcome.trouble = report.text.data();
    }
    outcome.is_hung = now - progress > kNoProgress;
    if (outcome.is_hung || !outcome.trouble.empty()) break;
    if (now - told < seconds(10)) continue;
    told = now;
    std::cerr << "  soak: " << outcome.steps << " of " << run.count << " steps\n";
  }
  outcome.steps = steps();
  for (const RankReport& report : board->ranks) {
    if (report.text[0] != '\0' && outcome.trouble.empty()) outcome.trouble = report.text.data();
    outcome.growth_kib = std::max(outcome.growth_kib, report.kib_late - report.kib_early);
  }
  return outcome;
}

}  // namespace magi::reliability
