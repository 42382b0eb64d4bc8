// SPDX-License-Identifier: Apache-2.0
#include "plan/hops.hpp"

#include <algorithm>
#include <tuple>

namespace magi {
namespace planner {
namespace {

/// Rows of one owner that ranks of one other node need.
struct Crossing {
  const Transfer* transfer = nullptr;
  std::int32_t node = 0;

  auto group() const {
    return std::tuple(transfer->space, transfer->dst_segment, transfer->src, node);
  }
  auto order() const { return std::tuple(group(), transfer->src_row, transfer->dst); }
};

/// Transfers between nodes of segments that `is_wanted` names, by owner and node.
template <typename IsWanted>
std::vector<Crossing> find_crossings(const Plan& plan, IsWanted is_wanted) {
  const std::int32_t size = plan.config.devices_per_node;
  std::vector<Crossing> crossings;
  for (const Transfer& t : plan.transfers) {
    const bool is_crossing = t.src / size != t.dst / size;
    if (is_crossing && is_wanted(t)) crossings.push_back({&t, t.dst / size});
  }
  std::ranges::sort(crossings, {}, &Crossing::order);
  return crossings;
}

/// Sweeps the rows of one owner for one node; visit(rows, readers): rows [begin, end) of the owner
/// that the same transfers bring.
template <typename Visit>
void sweep_readers(std::span<const Crossing> group, Visit visit) {
  std::vector<std::int32_t> bounds;
  for (const Crossing& crossing : group) {
    bounds.push_back(crossing.transfer->src_row);
    bounds.push_back(crossing.transfer->src_row + crossing.transfer->num_rows);
  }
  std::ranges::sort(bounds);
  bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
  std::vector<const Transfer*> active;
  auto next = group.begin();
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
    std::erase_if(active, [&](const Transfer* t) { return t->src_row + t->num_rows <= bounds[i]; });
    while (next != group.end() && next->transfer->src_row <= bounds[i]) {
      active.push_back((next++)->transfer);
    }
    if (!active.empty()) visit(Range{bounds[i], bounds[i + 1]}, active);
  }
}

template <typename Visit>
void visit_groups(std::span<const Crossing> crossings, Visit visit) {
  for (std::size_t begin = 0, end = 0; begin < crossings.size(); begin = end) {
    while (end < crossings.size() && crossings[end].group() == crossings[begin].group()) ++end;
    visit(crossings.subspan(begin, end - begin));
  }
}

Hop straight(const Transfer& t) {
  return {.space = t.space,
          .segment = t.dst_segment,
          .from = t.src,
          .to = t.dst,
          .from_row = t.src_row,
          .to_row = t.dst_row,
          .num_rows = t.num_rows};
}

/// The part of a transfer that brings rows [begin, end) of its owner.
Hop part_of(const Transfer& t, Range rows) {
  Hop hop = straight(t);
  hop.from_row = rows.begin;
  hop.to_row += rows.begin - t.src_row;
  hop.num_rows = rows.size();
  return hop;
}

void add_hops(std::span<const Transfer* const> readers, Range rows, std::int32_t node_size,
              std::vector<Hop>& hops) {
  const auto places_behind_owner = [node_size](const Transfer* t) {
    return (t->dst % node_size - t->src % node_size + node_size) % node_size;
  };
  const Transfer* nearest = *std::ranges::min_element(readers, {}, places_behind_owner);
  const Hop entering = part_of(*nearest, rows);
  hops.push_back(entering);
  for (const Transfer* reader : readers) {
    if (reader == nearest) continue;
    Hop onward = part_of(*reader, rows);
    onward.is_onward = true;
    onward.from = entering.to;
    onward.from_row = entering.to_row;
    hops.push_back(onward);
  }
}

/// Orders hops and joins those that follow each other on both sides.
void tidy(std::vector<Hop>& hops) {
  std::ranges::sort(hops, {}, [](const Hop& hop) {
    return std::tuple(hop.space, hop.segment, hop.is_onward, hop.to, hop.to_row);
  });
  std::size_t kept = 0;
  for (const Hop& hop : hops) {
    if (kept > 0) {
      Hop& last = hops[kept - 1];
      Hop follower = last;
      follower.from_row += last.num_rows;
      follower.to_row += last.num_rows;
      follower.num_rows = hop.num_rows;
      if (follower == hop) {
        last.num_rows += hop.num_rows;
        continue;
      }
    }
    hops[kept++] = hop;
  }
  hops.resize(kept);
}

}  // namespace

void choose_hops(Plan& plan) {
  if (!has_nodes(plan.config)) return;
  const auto crossings = find_crossings(plan, [](const Transfer&) { return true; });
  visit_groups(crossings, [&](std::span<const Crossing> group) {
    bool is_shared = false;
    sweep_readers(group, [&](Range, std::span<const Transfer* const> readers) {
      is_shared = is_shared || readers.size() > 1;
    });
    if (!is_shared) return;
    const Transfer& t = *group.front().transfer;
    for (Exchange& exchange : plan.exchanges) {
      const bool is_filling = space_of(exchange.role) == t.space;
      if (is_filling && exchange.segment == t.dst_segment) exchange.hop = 1;
    }
  });
}

}  // namespace planner

bool has_nodes(const PlanConfig& config) {
  return config.devices_per_node > 0 && config.devices_per_node < config.num_ranks;
}

bool is_by_node(const Plan& plan, Space space, std::int32_t segment) {
  return std::ranges::any_of(plan.exchanges, [&](const Exchange& exchange) {
    return exchange.hop != 0 && space_of(exchange.role) == space && exchange.segment == segment;
  });
}

std::vector<Hop> find_hops(const Plan& plan) {
  std::vector<Hop> hops;
  if (!has_nodes(plan.config)) return hops;
  const auto is_wanted = [&](const Transfer& t) {
    return is_by_node(plan, t.space, t.dst_segment);
  };
  const std::int32_t size = plan.config.devices_per_node;
  for (const Transfer& t : plan.transfers) {
    if (t.src / size == t.dst / size && is_wanted(t)) hops.push_back(planner::straight(t));
  }
  const auto crossings = planner::find_crossings(plan, is_wanted);
  planner::visit_groups(crossings, [&](std::span<const planner::Crossing> group) {
    planner::sweep_readers(group, [&](Range rows, std::span<const Transfer* const> readers) {
      planner::add_hops(readers, rows, size, hops);
    });
  });
  planner::tidy(hops);
  return hops;
}

}  // namespace magi
