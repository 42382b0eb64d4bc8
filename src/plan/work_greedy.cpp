// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <numeric>
#include <tuple>

#include "plan/work_budget.hpp"
#include "plan/work_named.hpp"

namespace magi::planner {
namespace {

constexpr std::int64_t kMostLoad = kLoadUnit + kLoadUnit / 10;
constexpr std::int32_t kRounds = 4;  // in which a budget is released
constexpr int kRepairs = 5;
constexpr std::int64_t kWidth = kShardUnit / 100;

/// Gives tiles to ranks that may read their rows, those with the least choice first.
class GreedyAssignment {
 public:
  GreedyAssignment(const WorkScale& work, const ReadSets& sets)
      : work_(work), rank_of_(work.areas.size()), loads_(static_cast<std::size_t>(work.num_ranks)) {
    for (const WorkTile& tile : work.grid.tiles) {
      // The owner of the queries where nobody has both: it then fetches the keys.
      const RankSet ranks = sets.of(tile);
      allowed_.push_back(ranks != 0 ? ranks : only(work.owner_q(tile)));
      is_lost_ = is_lost_ || ranks == 0;
    }
  }

  std::optional<std::vector<std::int32_t>> run() {
    if (is_lost_) return std::nullopt;
    std::vector<std::int32_t> order(rank_of_.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, {}, [this](std::int32_t t) {
      const auto tile = static_cast<std::size_t>(t);
      return std::tuple(std::popcount(allowed_[tile]), -work_.areas[tile], t);
    });
    for (const std::int32_t tile : order) give(static_cast<std::size_t>(tile));
    for (int i = 0; i < kRepairs && std::ranges::max(loads_) > kMostLoad; ++i) repair(order);
    if (std::ranges::max(loads_) > kMostLoad) return std::nullopt;
    return std::move(rank_of_);
  }

 private:
  std::int64_t& load(std::int32_t rank) { return loads_[static_cast<std::size_t>(rank)]; }
  bool may(std::size_t tile, std::int32_t rank) const { return (allowed_[tile] & only(rank)) != 0; }

  std::int32_t least_loaded(std::size_t tile) {
    std::int32_t best = std::countr_zero(allowed_[tile]);
    for (RankSet rest = allowed_[tile]; rest != 0; rest &= rest - 1) {
      const auto rank = static_cast<std::int32_t>(std::countr_zero(rest));
      if (load(rank) < load(best)) best = rank;
    }
    return best;
  }

  /// To the owner of its rows where that is one rank; else to the owner of one side while it has
  /// less than the mean; else to who has least.
  void give(std::size_t t) {
    const WorkTile& tile = work_.grid.tiles[t];
    const std::int32_t q = work_.owner_q(tile);
    const std::int32_t k = work_.owner_k(tile);
    std::int32_t rank = least_loaded(t);
    if (may(t, k) && load(k) + work_.areas[t] <= kLoadUnit) rank = k;
    if (may(t, q) && (q == k || load(q) + work_.areas[t] <= kLoadUnit)) rank = q;
    rank_of_[t] = rank;
    load(rank) += work_.areas[t];
  }

  /// Moves tiles of ranks above the limit to ranks that stay below it.
  void repair(const std::vector<std::int32_t>& order) {
    for (const std::int32_t index : order) {
      const auto t = static_cast<std::size_t>(index);
      const std::int32_t from = rank_of_[t];
      const std::int32_t to = least_loaded(t);
      if (load(from) <= kMostLoad || load(to) + work_.areas[t] >= load(from)) continue;
      load(from) -= work_.areas[t];
      load(to) += work_.areas[t];
      rank_of_[t] = to;
    }
  }

  const WorkScale& work_;
  std::vector<RankSet> allowed_;
  std::vector<std::int32_t> rank_of_;
  std::vector<std::int64_t> loads_;
  bool is_lost_ = false;
};

}  // namespace

std::vector<std::int32_t> share_to_owners(const WorkScale& work) {
  std::vector<std::int32_t> rank_of;
  rank_of.reserve(work.grid.tiles.size());
  for (const WorkTile& tile : work.grid.tiles) rank_of.push_back(work.owner_q(tile));
  return rank_of;
}

std::vector<std::int32_t> share_greedily(const WorkScale& work, std::int32_t num_at_once) {
  const auto assign = [&work](std::int64_t budget) {
    return GreedyAssignment(work, choose_rows(work, budget, kRounds)).run();
  };
  const auto budget =
      least_budget(work, {.width = kWidth, .num_at_once = num_at_once},
                   [&assign](std::int64_t tried) { return assign(tried).has_value(); });
  // Where tiles are too coarse for the limit, nothing is gained by moving them.
  return budget ? assign(*budget).value() : share_to_owners(work);
}

}  // namespace magi::planner
