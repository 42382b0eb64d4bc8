// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "base/random.hpp"
#include "plan/work_budget.hpp"
#include "plan/work_named.hpp"

namespace magi::planner {
namespace {

constexpr std::int64_t kMostDraws = 200'000;  // of tiles' ranks, over all restarts
constexpr std::int64_t kMostRestarts = 1000;
constexpr std::int64_t kHeldWeight = 8;  // of a rank that has one side's rows, for each side
constexpr std::int64_t kLoadPrice = 4;   // of area above the mean, in shards of cost
constexpr std::int32_t kTriesPerShare = 10;
constexpr std::int32_t kMostTries = 2000;
constexpr std::int32_t kFirstReleased = 50;  // percent of the tiles
constexpr std::uint64_t kSeed = 42;

/// A sharing out that is drawn tile by tile.
struct Draft {
  std::vector<std::int32_t> rank_of;  ///< -1: not drawn yet
  std::int64_t cost = 0;
};

class RandomGrids {
 public:
  explicit RandomGrids(const WorkScale& work) : work_(work) {
    start_.rank_of.assign(work.areas.size(), -1);
    for (std::size_t t = 0; t < work.areas.size(); ++t) {
      const WorkTile& tile = work.grid.tiles[t];
      if (work.owner_q(tile) == work.owner_k(tile)) {
        start_.rank_of[t] = work.owner_q(tile);
      } else {
        free_.push_back(t);
      }
    }
  }

  std::vector<std::int32_t> run() {
    const auto num_free = static_cast<std::int64_t>(std::max<std::size_t>(1, free_.size()));
    const std::int64_t num_restarts =
        std::clamp<std::int64_t>(kMostDraws / num_free / 2, 1, kMostRestarts);
    Draft best = start_;
    complete(best);
    if (free_.empty()) return std::move(best.rank_of);
    for (std::int64_t i = 1; i < num_restarts; ++i) {
      Draft other = start_;
      complete(other);
      if (other.cost < best.cost) best = std::move(other);
    }
    refine(best, kMostDraws / 2);
    return std::move(best.rank_of);
  }

 private:
  std::int64_t draw(std::int64_t count) {
    return static_cast<std::int64_t>((random_() >> 33) * static_cast<std::uint64_t>(count) >> 31);
  }

  /// Releases ever fewer tiles and draws them anew; keeps what costs no more. A try counts as a
  /// quarter of all tiles at least, as counting its cost takes as long.
  void refine(Draft& best, std::int64_t num_draws) {
    const auto least = static_cast<std::int64_t>(work_.areas.size()) / 4 + 1;
    std::int32_t percent = kFirstReleased;
    for (std::int32_t i = 1; i <= kMostTries && num_draws > 0; ++i) {
      Draft other = best;
      for (const std::size_t tile : free_) {
        if (draw(100) < percent) other.rank_of[tile] = -1;
      }
      num_draws -= std::max(complete(other), least);
      if (other.cost <= best.cost) best = std::move(other);
      if (i % kTriesPerShare == 0) percent = std::max(1, percent * 3 / 4);
    }
  }

  /// Draws ranks of tiles that have none, in random order, and counts what it all costs. Returns
  /// the number of draws.
  std::int64_t complete(Draft& draft) {
    sets_ = owned_rows(work_);
    loads_.assign(static_cast<std::size_t>(work_.num_ranks), 0);
    std::vector<std::size_t> open;
    for (std::size_t t = 0; t < draft.rank_of.size(); ++t) {
      if (draft.rank_of[t] < 0) {
        open.push_back(t);
      } else {
        give(t, draft.rank_of[t]);
      }
    }
    for (std::size_t i = open.size(); i > 1; --i) {
      std::swap(open[i - 1], open[static_cast<std::size_t>(draw(static_cast<std::int64_t>(i)))]);
    }
    for (const std::size_t tile : open) {
      draft.rank_of[tile] = draw_rank(work_.grid.tiles[tile]);
      give(tile, draft.rank_of[tile]);
    }
    draft.cost = cost();
    return static_cast<std::int64_t>(open.size());
  }

  void give(std::size_t t, std::int32_t rank) {
    const WorkTile& tile = work_.grid.tiles[t];
    sets_.q[static_cast<std::size_t>(tile.q)] |= only(rank);
    sets_.k[static_cast<std::size_t>(tile.k)] |= only(rank);
    loads_[static_cast<std::size_t>(rank)] += work_.areas[t];
  }

  /// One of the ranks with both sides' rows, those with less area rather; where there is none, of
  /// all, those with one side's rows rather.
  std::int32_t draw_rank(const WorkTile& tile) {
    const RankSet with_q = sets_.q[static_cast<std::size_t>(tile.q)];
    const RankSet with_k = sets_.k[static_cast<std::size_t>(tile.k)];
    const std::int64_t most = std::max(kLoadUnit, std::ranges::max(loads_)) * 21 / 20;
    weights_.clear();
    std::int64_t total = 0;
    for (std::int32_t rank = 0; rank < work_.num_ranks; ++rank) {
      const int held = ((with_q & only(rank)) != 0 ? 1 : 0) + ((with_k & only(rank)) != 0 ? 1 : 0);
      const bool is_open = (with_q & with_k) == 0 || held == 2;
      const std::int64_t room = (most - loads_[static_cast<std::size_t>(rank)]) >> 6;
      total += is_open ? (room + 1) * (held > 0 ? kHeldWeight : 1) : 0;
      weights_.push_back(total);
    }
    const auto chosen = std::ranges::upper_bound(weights_, draw(total));
    return static_cast<std::int32_t>(chosen - weights_.begin());
  }

  /// The busiest sender and receiver, a part of the sum, and the area above the mean.
  std::int64_t cost() const {
    const auto size = static_cast<std::size_t>(work_.num_ranks);
    std::vector<std::int64_t> sent(size);
    std::vector<std::int64_t> received(size);
    std::int64_t total = 0;
    const auto count = [&](const auto& parts, const auto& sets, const auto& costs) {
      for (std::size_t i = 0; i < parts.size(); ++i) {
        for (RankSet rest = sets[i] & ~only(parts[i].owner); rest != 0; rest &= rest - 1) {
          received[static_cast<std::size_t>(std::countr_zero(rest))] += costs[i];
          sent[static_cast<std::size_t>(parts[i].owner)] += costs[i];
          total += costs[i];
        }
      }
    };
    count(work_.grid.q, sets_.q, work_.cost_q);
    count(work_.grid.k, sets_.k, work_.cost_k);
    return std::ranges::max(sent) + std::ranges::max(received) + total / (10 * work_.num_ranks) +
           kLoadPrice * std::max(kLoadUnit, std::ranges::max(loads_));
  }

  const WorkScale& work_;
  Draft start_;                    ///< tiles with a fixed rank
  std::vector<std::size_t> free_;  ///< the other tiles
  ReadSets sets_;                  ///< of the draft at hand
  std::vector<std::int64_t> loads_;
  std::vector<std::int64_t> weights_;  ///< sums of ranks' weights
  RandomStream random_{kSeed};
};

}  // namespace

std::vector<std::int32_t> share_by_random_grids(const WorkScale& work) {
  return RandomGrids(work).run();
}

}  // namespace magi::planner
