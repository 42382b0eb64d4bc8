// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <utility>

#include "plan/area_flow.hpp"
#include "plan/work_budget.hpp"
#include "plan/work_named.hpp"

namespace magi::planner {
namespace {

/// How exact a search by flow is.
struct FlowEffort {
  std::int32_t num_rounds = 1;  ///< in which a budget is released
  std::int64_t width = 1;       ///< of the budget's interval at the end
  std::int64_t free_load = 1;   ///< above the mean
};
constexpr FlowEffort kFine{8, kShardUnit / 1000, kLoadUnit / 1000};
constexpr FlowEffort kCoarse{1, kShardUnit / 100, kLoadUnit / 1000};

std::int64_t most_load(const WorkScale& work, const FlowEffort& effort) {
  std::int64_t total = 0;
  for (const std::int64_t area : work.areas) total += area;
  return (total + work.num_ranks - 1) / work.num_ranks + effort.free_load;
}

/// Tiles by the ranks that may compute them; nothing where nobody may compute one.
class TileGroups {
 public:
  TileGroups(const WorkScale& work, const ReadSets& sets) : work_(work) {
    for (std::size_t t = 0; t < work.grid.tiles.size(); ++t) {
      tiles_[sets.of(work.grid.tiles[t])].push_back(t);
    }
  }

  bool has_lost() const { return tiles_.contains(0); }

  std::vector<AreaFlow::Item> items() const {
    std::vector<AreaFlow::Item> items;
    for (const auto& [ranks, tiles] : tiles_) {
      AreaFlow::Item item{.allowed = ranks, .cost = {}};
      for (const std::size_t tile : tiles) item.area += work_.areas[tile];
      items.push_back(std::move(item));
    }
    return items;
  }

  /// Tiles of each group in their order, by what flows to each rank: neighbours share rows.
  std::vector<std::int32_t> ranks_of(const AreaFlow& flow) const {
    std::vector<std::vector<AreaFlow::Share>> shares(tiles_.size());  // item: rank here
    for (std::int32_t rank = 0; rank < work_.num_ranks; ++rank) {
      for (const AreaFlow::Share& share : flow.shares_of(rank)) {
        shares[static_cast<std::size_t>(share.item)].push_back({rank, share.area});
      }
    }
    std::vector<std::int32_t> rank_of(work_.areas.size());
    auto group = shares.begin();
    for (const auto& [ranks, tiles] : tiles_) {
      const std::vector<AreaFlow::Share>& parts = *group++;
      std::size_t part = 0;
      std::int64_t left = parts.empty() ? 0 : parts[0].area;
      for (const std::size_t tile : tiles) {
        while (part + 1 < parts.size() && 2 * left < work_.areas[tile]) left += parts[++part].area;
        left -= work_.areas[tile];
        rank_of[tile] = parts.empty() ? work_.owner_q(work_.grid.tiles[tile]) : parts[part].item;
      }
    }
    return rank_of;
  }

 private:
  const WorkScale& work_;
  std::map<RankSet, std::vector<std::size_t>> tiles_;
};

/// Single tiles that cost a rank what it must fetch for them.
std::vector<AreaFlow::Item> priced_tiles(const WorkScale& work, const ReadSets& sets) {
  std::vector<AreaFlow::Item> items;
  for (std::size_t t = 0; t < work.areas.size(); ++t) {
    const WorkTile& tile = work.grid.tiles[t];
    AreaFlow::Item item{.area = work.areas[t], .allowed = sets.of(tile), .cost = {}};
    for (std::int32_t rank = 0; rank < work.num_ranks; ++rank) {
      item.cost.push_back(work.cost_of(tile, rank) * kLoadUnit /
                          std::max<std::int64_t>(1, item.area));
    }
    items.push_back(std::move(item));
  }
  return items;
}

}  // namespace

std::vector<std::int32_t> share_by_flow(const WorkScale& work, FlowGrain grain) {
  const bool is_coarse = grain == FlowGrain::Coarse;
  const FlowEffort& effort = is_coarse ? kCoarse : kFine;
  const std::int64_t most = most_load(work, effort);
  const auto sets_of = [&](std::int64_t budget) {
    return choose_rows(work, budget, effort.num_rounds);
  };
  const auto budget = least_budget(work, {.width = effort.width}, [&](std::int64_t tried) {
    const TileGroups groups(work, sets_of(tried));
    return !groups.has_lost() && AreaFlow(groups.items(), work.num_ranks).level(most);
  });
  if (!budget) return share_to_owners(work);  // tiles without area alone
  const ReadSets sets = sets_of(*budget);
  if (is_coarse) {
    const TileGroups groups(work, sets);
    AreaFlow flow(groups.items(), work.num_ranks);
    flow.level(most);
    return groups.ranks_of(flow);
  }
  AreaFlow flow(priced_tiles(work, sets), work.num_ranks);
  flow.level(most);
  return flow.largest_shares();
}

}  // namespace magi::planner
