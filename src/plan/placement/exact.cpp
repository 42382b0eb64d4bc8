// SPDX-License-Identifier: Apache-2.0
#include "plan/placement/exact.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/check.hpp"
#include "base/math.hpp"
#include "plan/placement/evaluate.hpp"

namespace magi {
namespace {

/// No placement has a smaller largest area.
std::int64_t load_bound(const ChunkTable& table, std::int32_t num_ranks) {
  const std::int64_t mean = ceil_div<std::int64_t>(table.total_area(), num_ranks);
  return std::max(mean, *std::max_element(table.area.begin(), table.area.end()));
}

enum class Goal { First, Best };

/// Depth-first search over chunks by falling area.
class LoadSearch {
 public:
  LoadSearch(const ChunkTable& table, const PlacementLimits& limits)
      : table_(table),
        limits_(limits),
        order_(chunks_by_area(table)),
        bound_(load_bound(table, limits.num_ranks)),
        best_(place_min_heap(table, limits)),
        best_load_(largest_area(table, best_, limits.num_ranks)),
        load_(static_cast<std::size_t>(limits.num_ranks), 0),
        count_(static_cast<std::size_t>(limits.num_ranks), 0),
        rank_of_(table.area.size(), 0) {}

  std::int64_t bound() const { return bound_; }
  std::int64_t best_load() const { return best_load_; }
  const Assignment& best() const { return best_; }

  /// Looks for loads of at most `capacity`: the first solution, or the best one. True when one was
  /// found; false means there is none, or that the nodes ran out.
  bool run(std::int64_t capacity, Goal goal) {
    if (table_.num_chunks() > kSearchChunks) return false;
    const std::int64_t before = best_load_;
    capacity_ = capacity;
    goal_ = goal;
    descend(0, 0);
    return best_load_ < before;
  }

 private:
  /// True stops the search. Leaves load_ and count_ as they were.
  bool descend(std::size_t depth, std::int64_t largest) {
    if (largest > capacity_) return false;  // a solution found since has lowered it
    if (depth == order_.size()) {
      best_ = rank_of_;
      best_load_ = largest;
      capacity_ = largest - 1;
      return goal_ == Goal::First || largest <= bound_;
    }
    if (nodes_left_ == 0) return true;
    --nodes_left_;
    const auto chunk = static_cast<std::size_t>(order_[depth]);
    const std::int64_t area = table_.area[chunk];
    for (std::size_t r = 0; r < load_.size(); ++r) {
      if (count_[r] == limits_.max_chunks || load_[r] + area > capacity_) continue;
      if (is_repeat(r)) continue;
      load_[r] += area;
      ++count_[r];
      rank_of_[chunk] = static_cast<std::int32_t>(r);
      const bool stop = descend(depth + 1, std::max(largest, load_[r]));
      load_[r] -= area;
      --count_[r];
      if (stop) return true;
    }
    return false;
  }

  /// An earlier rank in the same state has been tried.
  bool is_repeat(std::size_t rank) const {
    for (std::size_t r = 0; r < rank; ++r) {
      if (load_[r] == load_[rank] && count_[r] == count_[rank]) return true;
    }
    return false;
  }

  const ChunkTable& table_;
  PlacementLimits limits_;
  std::vector<std::int32_t> order_;
  std::int64_t bound_;
  Assignment best_;
  std::int64_t best_load_;
  std::vector<std::int64_t> load_;
  std::vector<std::int32_t> count_;
  Assignment rank_of_;
  std::int64_t capacity_ = 0;
  std::int64_t nodes_left_ = kSearchNodes;
  Goal goal_ = Goal::First;
};

/// least_[j][S]: least largest area of the chunks in S on at most j ranks.
struct SubsetTable {
  std::vector<std::int64_t> least;
  std::vector<std::uint32_t> choice;  // the subset on rank j - 1
};

SubsetTable solve_subsets(const std::vector<std::int64_t>& load, std::int32_t num_chunks,
                          const PlacementLimits& limits) {
  constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  const std::size_t sets = std::size_t{1} << num_chunks;
  const std::size_t layers = static_cast<std::size_t>(limits.num_ranks) + 1;
  SubsetTable result{std::vector<std::int64_t>(layers * sets, kNever),
                     std::vector<std::uint32_t>(layers * sets, 0)};
  result.least[0] = 0;
  for (std::size_t j = 1; j < layers; ++j) {
    const std::int64_t* below = &result.least[(j - 1) * sets];
    result.least[j * sets] = 0;
    for (std::uint32_t set = 1; set < sets; ++set) {
      const std::uint32_t lowest = set & (~set + 1);
      const std::uint32_t others = set ^ lowest;
      // The lowest chunk sits on rank j - 1: ranks are alike, so this loses nothing.
      for (std::uint32_t sub = others;; sub = (sub - 1) & others) {
        const std::uint32_t chosen = sub | lowest;
        const std::int64_t rest = below[set ^ chosen];
        const std::int64_t worst = std::max(load[chosen], rest);
        if (std::popcount(chosen) <= limits.max_chunks && worst < result.least[j * sets + set]) {
          result.least[j * sets + set] = worst;
          result.choice[j * sets + set] = chosen;
        }
        if (sub == 0) break;
      }
    }
  }
  return result;
}

}  // namespace

Assignment place_subsets(const ChunkTable& table, const PlacementLimits& limits) {
  const std::int32_t n = table.num_chunks();
  if (n > kSubsetChunks) return place_binary_search(table, limits);
  const std::uint32_t sets = 1U << n;
  std::vector<std::int64_t> load(sets, 0);
  for (std::uint32_t set = 1; set < sets; ++set) {
    const auto lowest = static_cast<std::size_t>(std::countr_zero(set));
    load[set] = load[set & (set - 1)] + table.area[lowest];
  }
  const SubsetTable solved = solve_subsets(load, n, limits);
  Assignment rank_of(table.area.size());
  std::uint32_t left = sets - 1;
  for (std::int32_t rank = limits.num_ranks - 1; left != 0; --rank) {
    MAGI_CHECK(rank >= 0);
    std::uint32_t chosen = solved.choice[(static_cast<std::size_t>(rank) + 1) * sets + left];
    left ^= chosen;
    for (; chosen != 0; chosen &= chosen - 1) {
      rank_of[static_cast<std::size_t>(std::countr_zero(chosen))] = rank;
    }
  }
  return rank_of;
}

Assignment place_binary_search(const ChunkTable& table, const PlacementLimits& limits) {
  LoadSearch search(table, limits);
  std::int64_t low = search.bound();
  while (low < search.best_load()) {
    const std::int64_t middle = low + (search.best_load() - low) / 2;
    if (!search.run(middle, Goal::First)) low = middle + 1;
  }
  return search.best();
}

Assignment place_backtracking(const ChunkTable& table, const PlacementLimits& limits) {
  LoadSearch search(table, limits);
  if (search.best_load() > search.bound()) search.run(search.best_load() - 1, Goal::Best);
  return search.best();
}

}  // namespace magi
