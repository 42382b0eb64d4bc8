// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/placement/classic.hpp"
#include "plan/placement/lightest_rank.hpp"

namespace magi {

struct AreaCaps {
  std::int64_t soft = 0;
  std::int64_t hard = 0;
};

/// Load-capped affinity: chunks by falling area, each to the rank with room whose remote rows rise
/// least among those that stay within caps.soft; when none does, within caps.hard; when none does,
/// to the lightest with room. The soft cap fills ranks evenly while chunks are heavy.
/// Candidates are the ranks of the nearest chunks placed so far and the lightest one, so that the
/// cost does not grow with the number of ranks. Where chunks belong to nodes already, only ranks of
/// a chunk's node are.
template <typename Keys>
class AffinityGreedy {
 public:
  /// `node_of`: the node of each chunk, of limits.devices_per_node ranks; empty: any rank will do.
  AffinityGreedy(const Keys& keys, const ChunkTable& table, const PlacementLimits& limits,
                 std::span<const std::int32_t> node_of = {})
      : keys_(keys),
        area_(table.area),
        limits_(limits),
        node_of_(node_of),
        lightest_(static_cast<std::size_t>(limits.num_ranks)) {}

  Assignment run(const std::vector<std::int32_t>& order, const AreaCaps& caps) {
    const auto ranks = static_cast<std::size_t>(limits_.num_ranks);
    rank_of_.assign(area_.size(), kFree);
    chunks_.assign(ranks, {});
    load_.assign(ranks, 0);
    stamp_.assign(ranks, kFree);
    lightest_ = LightestRank(ranks);
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

  /// Ranks that may hold a chunk.
  Range ranks_for(std::int32_t chunk) const {
    if (node_of_.empty()) return {0, limits_.num_ranks};
    const std::int32_t node = node_of_[static_cast<std::size_t>(chunk)];
    return {node * limits_.devices_per_node, (node + 1) * limits_.devices_per_node};
  }

  /// The lightest of all ranks, or of the few of a node.
  std::size_t lightest(Range ranks) const {
    if (node_of_.empty()) return lightest_.rank();
    std::size_t best = load_.size();
    for (std::int32_t rank = ranks.begin; rank < ranks.end; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      if (has_room(r) && (best == load_.size() || load_[r] < load_[best])) best = r;
    }
    return best;
  }

  std::size_t choose(std::int32_t chunk, const AreaCaps& caps) {
    const std::int64_t area = area_[static_cast<std::size_t>(chunk)];
    const Range ranks = ranks_for(chunk);
    std::size_t best = lightest(ranks);
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
    if (ranks.size() <= kAllRanks) {
      for (std::int32_t r = ranks.begin; r < ranks.end; ++r) consider(static_cast<std::size_t>(r));
      return best;
    }
    const std::int32_t n = static_cast<std::int32_t>(area_.size());
    const auto visit = [&](std::int32_t other) {
      const std::int32_t rank = rank_of_[static_cast<std::size_t>(other)];
      if (rank < ranks.begin || rank >= ranks.end) return;
      if (stamp_[static_cast<std::size_t>(rank)] == chunk) return;
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
    if (has_room(rank)) {
      lightest_.set_load(rank, load_[rank]);
    } else {
      lightest_.set_full(rank);
    }
  }

  const Keys& keys_;
  const std::vector<std::int64_t>& area_;
  PlacementLimits limits_;
  std::span<const std::int32_t> node_of_;
  LightestRank lightest_;  ///< one run's
  Assignment rank_of_;
  std::vector<std::vector<std::int32_t>> chunks_;
  std::vector<std::int64_t> load_;
  std::vector<std::int32_t> stamp_;  // last chunk that considered the rank
};

}  // namespace magi
