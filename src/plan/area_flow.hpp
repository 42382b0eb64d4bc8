// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "plan/work_budget.hpp"

namespace magi::planner {

/// Area that flows to ranks: each item's to ranks of its own set, at a cost per unit of area.
/// Starts where each item costs least. Ranks with too much then hand area on along the cheapest way
/// of items to a rank with room, again and again, which keeps the cost the least of all flows with
/// these loads (successive shortest paths: Busacker, Gowen, 1961).
class AreaFlow {
 public:
  struct Item {
    std::int64_t area = 0;
    RankSet allowed = 0;             ///< not empty
    std::vector<std::int64_t> cost;  ///< of a unit of area, by rank; empty: all cost the same
  };
  struct Share {
    std::int32_t item = 0;
    std::int64_t area = 0;
  };

  AreaFlow(std::vector<Item> items, std::int32_t num_ranks);

  /// Evens out until no rank has more than `most`; false where no flow does that.
  bool level(std::int64_t most);

  const std::vector<std::int64_t>& loads() const { return loads_; }
  /// What flows to a rank, in no order, each item once.
  const std::vector<Share>& shares_of(std::int32_t rank) const {
    return shares_[static_cast<std::size_t>(rank)];
  }
  /// The rank that gets most of each item, the lowest of equals.
  std::vector<std::int32_t> largest_shares() const;

 private:
  /// The cheapest item to hand from one rank to another.
  struct Arc {
    std::int64_t cost = 0;
    std::int32_t item = -1;
  };

  std::int64_t cost(std::int32_t item, std::int32_t rank) const {
    const auto& costs = items_[static_cast<std::size_t>(item)].cost;
    return costs.empty() ? 0 : costs[static_cast<std::size_t>(rank)];
  }
  Arc& arc(std::int32_t from, std::int32_t to) {
    return arcs_[static_cast<std::size_t>(from) * loads_.size() + static_cast<std::size_t>(to)];
  }
  Share* find_share(std::int32_t rank, std::int32_t item);
  void add(std::int32_t rank, std::int32_t item, std::int64_t area);
  void find_arcs(std::int32_t from);
  bool find_way(std::int64_t most, std::vector<std::int32_t>& way);
  void hand_on(const std::vector<std::int32_t>& way, std::int64_t most);

  std::vector<Item> items_;
  std::int32_t num_ranks_;
  std::vector<std::int64_t> loads_;
  std::vector<std::vector<Share>> shares_;  ///< by rank
  std::vector<Arc> arcs_;                   ///< [from, to]
};

}  // namespace magi::planner
