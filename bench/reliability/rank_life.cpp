// SPDX-License-Identifier: Apache-2.0
#include "rank_life.hpp"

#include <cstdio>
#include <new>
#include <thread>
#include <vector>

#include "base/random.hpp"
#include "magi/error.hpp"
#include "random_step.hpp"
#include "rank_memory.hpp"

namespace magi::reliability {
namespace {

constexpr std::int64_t kCheckEvery = 8;  ///< steps
constexpr auto kMeeting = std::chrono::seconds(20);

std::int32_t device_of(const Trial& trial, std::int32_t rank) {
  return trial.transport == Transport::Nvlink ? rank : kCpuDevice;
}

/// Up to 300 us, at times 20 ms.
void delay(RandomStream& random) {
  const std::int32_t most = random.chance(2) ? 20'000 : 300;
  std::this_thread::sleep_for(std::chrono::microseconds(random.between(0, most)));
}

/// An allocator whose memory has run out.
DeviceAllocator empty_allocator() {
  return {.allocate = [](std::size_t, std::int32_t, void*) -> void* { throw std::bad_alloc(); },
          .release = [](void*, std::size_t, std::int32_t, void*) {}};
}

/// Steps of one rank in one group.
class Walk {
 public:
  Walk(const Trial& trial, std::int32_t rank, Communicator& group, Board& board)
      : trial_(trial),
        rank_(rank),
        device_(device_of(trial, rank)),
        group_(group),
        board_(board),
        random_(trial.seed * 31 + static_cast<std::uint64_t>(rank)) {}

  /// Forward and backward of a step; a digest of its results where it is looked at.
  std::uint64_t run(std::int64_t step) {
    const bool is_faulty = rank_ == trial_.faulty_rank && step == trial_.fault_step;
    if (is_faulty && trial_.fault == Fault::Absent) stay_away();
    const bool is_other = is_faulty && trial_.fault == Fault::OtherPlan;
    const bool is_empty = is_faulty && trial_.fault == Fault::OutOfMemory;
    if (is_other || is_empty) board_.fault_ns = now_ns();
    const auto plan =
        random_plan(trial_.seed, is_other ? -1 : step, trial_.num_ranks, device_ >= 0);
    const auto layer = make_layer(plan, group_, device_, trial_.seed,
                                  is_empty ? empty_allocator() : DeviceAllocator{});
    delay(random_);
    layer->forward();
    delay(random_);
    layer->backward();
    return step % kCheckEvery == 0 ? layer->digest_sync() : 0;
  }

 private:
  /// Until the trial's process ends this one.
  [[noreturn]] void stay_away() {
    board_.fault_ns = now_ns();
    for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
  }

  const Trial& trial_;
  const std::int32_t rank_;
  const std::int32_t device_;
  Communicator& group_;
  Board& board_;
  RandomStream random_;
};

/// Until the group fails. Returns the digest of the first step.
std::uint64_t walk_until_failure(const Trial& trial, std::int32_t rank, Board& board) {
  RankReport& report = board.ranks[static_cast<std::size_t>(rank)];
  std::uint64_t first = 0;
  const auto group = join(trial, trial.name, rank);
  Walk walk(trial, rank, *group, board);
  const auto tell = [&](const char* what) {
    report.tell(what);
    report.error_ns = now_ns();
  };
  try {
    for (std::int64_t step = 0;; ++step) {
      const std::uint64_t digest = walk.run(step);
      if (step == 0) first = digest;
      ++report.steps;
    }
  } catch (const CommError& error) {
    tell(error.what());
  } catch (const std::bad_alloc& error) {
    if (trial.fault != Fault::OutOfMemory || rank != trial.faulty_rank) throw;
    tell(error.what());
  }
  return first;
}

/// The first step in a new group. Returns its digest.
std::uint64_t join_anew(const Trial& trial, std::int32_t rank, Board& board) {
  const Trial sound{.name = trial.name,
                    .seed = trial.seed,
                    .faulty_rank = -1,
                    .transport = trial.transport,
                    .num_ranks = trial.num_ranks,
                    .deadline = kMeeting};
  const auto group = join(sound, trial.name + "-again", rank);
  const std::uint64_t digest = Walk(sound, rank, *group, board).run(0);
  group->close_sync();
  return digest;
}

/// One layer in a group of one rank: what a process keeps on its GPU for good is there then.
void warm_up(const Trial& trial, std::int32_t rank) {
  auto base = std::shared_ptr<Communicator>(std::move(make_thread_group(1).front()));
  const auto group = make_nvlink_group(base, rank, {.deadline = kMeeting});
  const auto layer = make_layer(random_plan(trial.seed, 0, 1, true), *group, rank, trial.seed);
  layer->forward();
  layer->backward();
  layer->digest_sync();
}

/// What the rank's GPU has free; 0 without one.
std::size_t free_bytes(const Trial& trial, std::int32_t rank) {
  return trial.transport == Transport::Nvlink ? free_gpu_bytes(rank) : 0;
}

std::int64_t resident_kib() {
  FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  long long pages = 0, resident = 0;
  const int count = std::fscanf(file, "%lld %lld", &pages, &resident);
  std::fclose(file);
  return count == 2 ? resident * 4 : 0;
}

}  // namespace

const char* fault_name(Fault fault) {
  switch (fault) {
    case Fault::Killed:
      return "killed";
    case Fault::Stopped:
      return "stopped";
    case Fault::Absent:
      return "absent";
    case Fault::OtherPlan:
      return "other plan";
    case Fault::OutOfMemory:
      return "out of memory";
    case Fault::None:
      break;
  }
  return "none";
}

std::unique_ptr<Communicator> join(const Trial& trial, const std::string& name, std::int32_t rank) {
  const auto bootstrap = local_bootstrap(name, rank, trial.num_ranks, kMeeting);
  auto group = make_shm_group(rank, trial.num_ranks, bootstrap, {.deadline = trial.deadline});
  if (trial.transport == Transport::Shm) return group;
  return make_nvlink_group(std::move(group), rank, {.deadline = trial.deadline});
}

void live(const Trial& trial, std::int32_t rank, Board& board) {
  constexpr std::size_t kTolerance = std::size_t{2} << 20;
  if (trial.transport == Transport::Nvlink) warm_up(trial, rank);
  const std::size_t before = free_bytes(trial, rank);
  const std::uint64_t first = walk_until_failure(trial, rank, board);
  const std::size_t after = free_bytes(trial, rank);
  if (after + kTolerance < before) {
    throw InternalError(std::to_string(before - after) + " bytes of the GPU are not given back");
  }
  if (join_anew(trial, rank, board) != first) {
    throw InternalError("the first step has other bits in the new group");
  }
  board.ranks[static_cast<std::size_t>(rank)].has_new_group = 1;
}

void replace(const Trial& trial, Board& board) {
  join_anew(trial, trial.faulty_rank, board);
  board.ranks[static_cast<std::size_t>(trial.faulty_rank)].has_new_group = 1;
}

void soak(const Soak& run, RankReport& report) {
  constexpr int kMostUnderWay = 3;
  const Communicator& first = *run.groups.front();
  RandomStream common(run.seed);
  RandomStream own(run.seed * 31 + static_cast<std::uint64_t>(first.rank()) + 1);
  std::vector<std::unique_ptr<Layer>> under_way;  // as the layers of a model
  for (std::int64_t step = 0; step < run.count; ++step) {
    Communicator& group = *run.groups[static_cast<std::size_t>(step) % run.groups.size()];
    const auto plan = random_plan(run.seed, step, group.num_ranks(), run.device >= 0);
    under_way.push_back(make_layer(plan, group, run.device, run.seed));
    delay(own);
    under_way.back()->forward();
    ++report.steps;
    const bool is_full = common.chance(40) || under_way.size() == kMostUnderWay;
    if (!is_full && step + 1 < run.count) continue;
    for (; !under_way.empty(); under_way.pop_back()) {
      delay(own);
      under_way.back()->backward();
      if (common.chance(20)) under_way.back()->digest_sync();
    }
    if (step * 5 <= run.count) report.kib_early = resident_kib();
    report.kib_late = resident_kib();
  }
}

}  // namespace magi::reliability
