// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "plan/placement/classic.hpp"

namespace magi {

struct AreaCaps {
  std::int64_t soft = 0;
  std::int64_t hard = 0;
};

/// Load-capped affinity: chunks by falling area, each to the rank with room whose remote rows rise
/// least among those that stay within caps.soft; when none does, within caps.hard; when none does,
/// to the lightest with room. The soft cap fills ranks evenly while chunks are heavy.
/// Candidates are the ranks of the nearest chunks placed so far and the lightest one, so that the
/// cost does not grow with the number of ranks.
template <typename Keys>
class AffinityGreedy {
 public:
  AffinityGreedy(const Keys& keys, const ChunkTable& table, const PlacementLimits& limits)
      : keys_(keys), area_(table.area), limits_(limits) {}

  Assignment run(const std::vector<std::int32_t>& order, const AreaCaps& caps) {
    const auto ranks = static_cast<std::size_t>(limits_.num_ranks);
    rank_of_.assign(area_.size(), kFree);
    chunks_.assign(ranks, {});
    load_.assign(ranks, 0);
    stamp_.assign(ranks, kFree);
    for (const std::int32_t chunk : order) give(chunk, choose(chunk, caps));
    return std::move(rank_of_);
  }

 private:
  static constexpr std::int32_t kFree = -1;
  static constexpr std::int32_t kAllRanks = 16;  // up to here every rank is a candidate
  static constexpr std::int32_t kReach = 24;     // chunks looked at to each side otherwise

  bool has_room(std::size_t rank) const {
    return static_cast<std::int32_t>(chunks_[rank].size()) < limits_.max_chunks;
  }

  std::size_t lightest() const {
    std::size_t best = load_.size();
    for (std::size_t r = 0; r < load_.size(); ++r) {
      if (has_room(r) && (best == load_.size() || load_[r] < load_[best])) best = r;
    }
    return best;
  }

  std::size_t choose(std::int32_t chunk, const AreaCaps& caps) {
    const std::int64_t area = area_[static_cast<std::size_t>(chunk)];
    std::size_t best = lightest();
    const std::int64_t cap = load_[best] + area > caps.soft ? caps.hard : caps.soft;
    if (load_[best] + area > cap) return best;
    std::int32_t best_cost = keys_.cost_of_adding(chunk, chunks_[best]);
    const auto consider = [&](std::size_t r) {
      if (!has_room(r) || load_[r] + area > cap) return;
      const std::int32_t cost = keys_.cost_of_adding(chunk, chunks_[r]);
      if (cost < best_cost || (cost == best_cost && load_[r] < load_[best])) {
        best_cost = cost;
        best = r;
      }
    };
    if (limits_.num_ranks <= kAllRanks) {
      for (std::size_t r = 0; r < load_.size(); ++r) consider(r);
      return best;
    }
    const std::int32_t n = static_cast<std::int32_t>(area_.size());
    const auto visit = [&](std::int32_t other) {
      const std::int32_t rank = rank_of_[static_cast<std::size_t>(other)];
      if (rank == kFree || stamp_[static_cast<std::size_t>(rank)] == chunk) return;
      stamp_[static_cast<std::size_t>(rank)] = chunk;
      consider(static_cast<std::size_t>(rank));
    };
    for (std::int32_t c = chunk + 1; c < std::min(n, chunk + 1 + kReach); ++c) visit(c);
    for (std::int32_t c = chunk - 1; c >= std::max(0, chunk - kReach); --c) visit(c);
    return best;
  }

  void give(std::int32_t chunk, std::size_t rank) {
    rank_of_[static_cast<std::size_t>(chunk)] = static_cast<std::int32_t>(rank);
    load_[rank] += area_[static_cast<std::size_t>(chunk)];
    std::vector<std::int32_t>& held = chunks_[rank];
    held.insert(std::lower_bound(held.begin(), held.end(), chunk), chunk);
  }

  const Keys& keys_;
  const std::vector<std::int64_t>& area_;
  PlacementLimits limits_;
  Assignment rank_of_;
  std::vector<std::vector<std::int32_t>> chunks_;
  std::vector<std::int64_t> load_;
  std::vector<std::int32_t> stamp_;  // last chunk that considered the rank
};

}  // namespace magi
