// SPDX-License-Identifier: Apache-2.0
#include "plan/area_flow.hpp"

#include <algorithm>
#include <bit>
#include <limits>

namespace magi::planner {
namespace {

constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max() / 4;

template <typename Visit>
void for_each_rank(RankSet ranks, Visit visit) {
  for (; ranks != 0; ranks &= ranks - 1) visit(static_cast<std::int32_t>(std::countr_zero(ranks)));
}

}  // namespace

AreaFlow::AreaFlow(std::vector<Item> items, std::int32_t num_ranks)
    : items_(std::move(items)),
      num_ranks_(num_ranks),
      loads_(static_cast<std::size_t>(num_ranks)),
      shares_(loads_.size()),
      arcs_(loads_.size() * loads_.size()) {
  for (std::size_t i = 0; i < items_.size(); ++i) {
    const auto item = static_cast<std::int32_t>(i);
    std::int32_t best = -1;
    for_each_rank(items_[i].allowed, [&](std::int32_t rank) {
      const auto key = [&](std::int32_t r) {
        return std::pair(cost(item, r), loads_[static_cast<std::size_t>(r)]);
      };
      if (best < 0 || key(rank) < key(best)) best = rank;
    });
    if (items_[i].area > 0) add(best, item, items_[i].area);
  }
  for (std::int32_t rank = 0; rank < num_ranks; ++rank) find_arcs(rank);
}

bool AreaFlow::level(std::int64_t most) {
  std::vector<std::int32_t> way;
  while (std::ranges::max(loads_) > most) {
    if (!find_way(most, way)) return false;
    hand_on(way, most);
  }
  return true;
}

std::vector<std::int32_t> AreaFlow::largest_shares() const {
  std::vector<std::int32_t> ranks;
  ranks.reserve(items_.size());
  for (const Item& item : items_) {
    ranks.push_back(static_cast<std::int32_t>(std::countr_zero(item.allowed)));
  }
  std::vector<std::int64_t> largest(items_.size());
  for (std::int32_t rank = 0; rank < num_ranks_; ++rank) {
    for (const Share& share : shares_of(rank)) {
      const auto item = static_cast<std::size_t>(share.item);
      if (share.area <= largest[item]) continue;
      largest[item] = share.area;
      ranks[item] = rank;
    }
  }
  return ranks;
}

AreaFlow::Share* AreaFlow::find_share(std::int32_t rank, std::int32_t item) {
  auto& shares = shares_[static_cast<std::size_t>(rank)];
  const auto found = std::ranges::find(shares, item, &Share::item);
  return found == shares.end() ? nullptr : &*found;
}

void AreaFlow::add(std::int32_t rank, std::int32_t item, std::int64_t area) {
  auto& shares = shares_[static_cast<std::size_t>(rank)];
  loads_[static_cast<std::size_t>(rank)] += area;
  Share* share = find_share(rank, item);
  if (share == nullptr) {
    shares.push_back({item, area});
    return;
  }
  share->area += area;
  if (share->area > 0) return;
  *share = shares.back();
  shares.pop_back();
}

void AreaFlow::find_arcs(std::int32_t from) {
  for (std::int32_t to = 0; to < num_ranks_; ++to) arc(from, to) = {};
  for (const Share& share : shares_[static_cast<std::size_t>(from)]) {
    const std::int64_t here = cost(share.item, from);
    for_each_rank(items_[static_cast<std::size_t>(share.item)].allowed, [&](std::int32_t to) {
      Arc& known = arc(from, to);
      const std::int64_t more = cost(share.item, to) - here;
      if (known.item < 0 || more < known.cost || (more == known.cost && share.item < known.item)) {
        known = {more, share.item};
      }
    });
  }
}

/// The cheapest way from any rank with too much to any with room; of equals one with few ranks.
bool AreaFlow::find_way(std::int64_t most, std::vector<std::int32_t>& way) {
  const auto size = static_cast<std::size_t>(num_ranks_);
  std::vector<std::pair<std::int64_t, std::int32_t>> distance(size, {kFar, 0});  // cost, ranks
  std::vector<std::int32_t> before(size, -1);
  for (std::size_t r = 0; r < size; ++r) {
    if (loads_[r] > most) distance[r] = {0, 0};
  }
  for (bool is_changed = true; is_changed;) {
    is_changed = false;
    for (std::int32_t from = 0; from < num_ranks_; ++from) {
      const auto [cost, ranks] = distance[static_cast<std::size_t>(from)];
      if (cost == kFar) continue;
      for (std::int32_t to = 0; to < num_ranks_; ++to) {
        const Arc& next = arc(from, to);
        auto& known = distance[static_cast<std::size_t>(to)];
        const std::pair reached(cost + next.cost, ranks + 1);
        if (next.item < 0 || to == from || reached >= known) continue;
        known = reached;
        before[static_cast<std::size_t>(to)] = from;
        is_changed = true;
      }
    }
  }
  std::int32_t best = -1;
  for (std::int32_t r = 0; r < num_ranks_; ++r) {
    const auto rank = static_cast<std::size_t>(r);
    if (loads_[rank] >= most || distance[rank].first == kFar) continue;
    if (best < 0 || distance[rank] < distance[static_cast<std::size_t>(best)]) best = r;
  }
  if (best < 0) return false;
  way.clear();
  for (std::int32_t r = best; r >= 0; r = before[static_cast<std::size_t>(r)]) way.push_back(r);
  std::ranges::reverse(way);
  return true;
}

void AreaFlow::hand_on(const std::vector<std::int32_t>& way, std::int64_t most) {
  std::int64_t area = std::min(loads_[static_cast<std::size_t>(way.front())] - most,
                               most - loads_[static_cast<std::size_t>(way.back())]);
  std::vector<std::int32_t> items;
  for (std::size_t i = 0; i + 1 < way.size(); ++i) {
    items.push_back(arc(way[i], way[i + 1]).item);
    area = std::min(area, find_share(way[i], items.back())->area);
  }
  for (std::size_t i = 0; i + 1 < way.size(); ++i) {
    add(way[i], items[i], -area);
    add(way[i + 1], items[i], area);
  }
  for (const std::int32_t rank : way) find_arcs(rank);
}

}  // namespace magi::planner
