// SPDX-License-Identifier: Apache-2.0
#include "bench/distributed/dist_bench.hpp"

#include <algorithm>
#include <cstring>
#include <thread>
#include <type_traits>

#include "base/check.hpp"
#include "bench/distributed/cell.hpp"
#include "common/files.hpp"
#include "common/masks.hpp"
#include "common/shared_memory.hpp"
#include "kernels/cpu/attention.hpp"
#include "ranks/rank_processes.hpp"

namespace magi::cli {
namespace {

constexpr std::size_t kNameBytes = 128;
static_assert(std::is_trivially_copyable_v<DistCell>);

/// What rank 0 leaves for the process that started it.
class SharedCells {
 public:
  explicit SharedCells(std::size_t count) : memory_(kNameBytes + count * sizeof(DistCell)) {}

  void set_device(const std::string& name) {
    std::strncpy(reinterpret_cast<char*>(memory_.data()), name.c_str(), kNameBytes - 1);
  }
  std::string device() const { return reinterpret_cast<const char*>(memory_.data()); }
  void set(std::size_t index, const DistCell& cell) {
    std::memcpy(memory_.data() + kNameBytes + index * sizeof(DistCell), &cell, sizeof(DistCell));
  }
  DistCell get(std::size_t index) const {
    DistCell cell;
    std::memcpy(&cell, memory_.data() + kNameBytes + index * sizeof(DistCell), sizeof(DistCell));
    return cell;
  }

 private:
  SharedMemory memory_;
};

std::vector<std::int32_t> default_ranks(std::int32_t num_gpus) {
  std::vector<std::int32_t> counts;
  for (std::int32_t count = 1; count <= std::min(num_gpus, 8); count *= 2) counts.push_back(count);
  return counts;
}

/// The numbers of ranks to run; those of a launcher are as they are.
std::vector<std::int32_t> rank_counts(const DistBenchOptions& options,
                                      const std::optional<LaunchEnv>& launched) {
  if (launched) {
    std::vector<std::int32_t> only{launched->num_ranks};
    if (!options.ranks.empty() && options.ranks != only) {
      throw invalid("--gpus", options.ranks.front(),
                    std::to_string(only[0]) + ", the ranks of the launcher, or nothing");
    }
    return only;
  }
  if (options.is_cpu) return options.ranks.empty() ? std::vector{2} : options.ranks;
  const std::int32_t num_gpus = count_gpus();
  if (num_gpus == 0) {
    throw EnvironmentUnfit("no GPU that there are kernels for is visible; --cpu runs without");
  }
  for (const std::int32_t count : options.ranks) {
    if (count <= num_gpus) continue;
    throw EnvironmentUnfit("--gpus is " + std::to_string(count) +
                           "; GPUs seen: " + std::to_string(num_gpus));
  }
  return options.ranks.empty() ? default_ranks(num_gpus) : options.ranks;
}

/// That all masks can be made, before any rank starts.
void check_masks(const DistBenchOptions& options, const std::vector<std::int32_t>& counts) {
  for (const std::int32_t count : counts) {
    for (const std::int32_t tokens : options.tokens) {
      for (const std::string& mask : options.masks) {
        try {
          dist_mask(mask, tokens * count);
        } catch (const InvalidArgument&) {
          throw invalid("--tokens",
                        std::to_string(tokens) + " on " + std::to_string(count) + " ranks",
                        "for " + mask +
                            " lengths in all with recorded documents: powers of two from 2k to "
                            "1024k, and any below");
        }
      }
    }
  }
}

void run_cells(const DistBenchOptions& options, const std::shared_ptr<Communicator>& base,
               const std::function<void(const std::string&)>& tell, SharedCells& cells,
               std::size_t index) {
  if (options.is_cpu) {
    const auto cores = static_cast<std::int32_t>(std::thread::hardware_concurrency());
    cpu::set_num_threads(std::max(1, cores / base->num_ranks()));
  }
  DistRank rank(options, base, tell);
  cells.set_device(rank.device_name());
  for (const std::int32_t tokens : options.tokens) {
    for (std::size_t mask = 0; mask < options.masks.size(); ++mask) {
      const DistCell cell = rank.run(static_cast<std::int32_t>(mask), tokens);
      if (base->rank() == 0) cells.set(index++, cell);
    }
  }
  rank.close_sync();
}

}  // namespace

const char* dist_side_name(DistSide side) {
  constexpr std::array kNames = {"alone", "default", "ulysses", "ring", "allgather", "usp"};
  return kNames[static_cast<std::size_t>(side)];
}

const char* dist_side_kind(DistSide side) {
  if (side == DistSide::Alone) return "alone";
  return side == DistSide::Default ? "ours" : "baseline";
}

DistReport run_dist_bench(const DistBenchOptions& options,
                          const std::function<void(const std::string&)>& tell) {
  const std::optional<LaunchEnv> launched = launch_env();
  const std::vector<std::int32_t> counts = rank_counts(options, launched);
  check_masks(options, counts);
  const std::size_t per_count = options.tokens.size() * options.masks.size();
  SharedCells cells(counts.size() * per_count);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const RankProcesses ranks{.launched = launched,
                              .num_ranks = counts[i],
                              .name = "bench",
                              .deadline = std::chrono::seconds(options.deadline_seconds)};
    run_rank_processes(ranks, [&](const std::shared_ptr<Communicator>& base) {
      run_cells(options, base, tell, cells, i * per_count);
    });
  }
  DistReport report{.device = cells.device()};
  if (launched && launched->rank > 0) return report;
  for (std::size_t i = 0; i < counts.size() * per_count; ++i) report.cells.push_back(cells.get(i));
  return report;
}

}  // namespace magi::cli
