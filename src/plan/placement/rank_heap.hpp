// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.hpp"
#include "plan/placement/classic.hpp"

namespace magi {

struct RankLoad {
  std::int64_t load = 0;
  std::int32_t rank = 0;
  std::int32_t count = 0;
};

/// Ranks with room, lightest first; among equals the lower index.
class RankHeap {
 public:
  explicit RankHeap(const PlacementLimits& limits) : max_chunks_(limits.max_chunks) {
    heap_.reserve(static_cast<std::size_t>(limits.num_ranks));
    for (std::int32_t r = 0; r < limits.num_ranks; ++r) heap_.push_back({0, r, 0});
  }

  bool empty() const { return heap_.empty(); }

  /// Full ranks do not come back.
  void push(const RankLoad& rank) {
    if (rank.count >= max_chunks_) return;
    heap_.push_back(rank);
    std::push_heap(heap_.begin(), heap_.end(), after);
  }

  RankLoad pop() {
    MAGI_CHECK(!heap_.empty());
    std::pop_heap(heap_.begin(), heap_.end(), after);
    const RankLoad rank = heap_.back();
    heap_.pop_back();
    return rank;
  }

  /// Up to `count` ranks, lightest first.
  std::vector<RankLoad> pop_lightest(std::int32_t count) {
    std::vector<RankLoad> ranks;
    while (!heap_.empty() && static_cast<std::int32_t>(ranks.size()) < count) {
      ranks.push_back(pop());
    }
    return ranks;
  }

  std::int32_t give_to_lightest(std::int64_t area) {
    RankLoad rank = pop();
    rank.load += area;
    ++rank.count;
    push(rank);
    return rank.rank;
  }

 private:
  static bool after(const RankLoad& a, const RankLoad& b) {
    return a.load != b.load ? a.load > b.load : a.rank > b.rank;
  }

  std::vector<RankLoad> heap_;
  std::int32_t max_chunks_;
};

}  // namespace magi
