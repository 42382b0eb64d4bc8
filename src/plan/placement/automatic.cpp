// SPDX-License-Identifier: Apache-2.0
#include "plan/placement/automatic.hpp"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <type_traits>
#include <utility>

#include "plan/placement/block_keys.hpp"
#include "plan/placement/evaluate.hpp"
#include "plan/placement/greedy.hpp"
#include "plan/placement/kicks.hpp"
#include "plan/placement/monotone_keys.hpp"
#include "plan/placement/pair_search.hpp"

namespace magi {
namespace {

// Visits of chunks that a search may make, fixed part and per chunk. 128 chunks of packed documents
// on 8 ranks need about 7000; with thousands of chunks the fast search stops before the optimum.
constexpr std::int64_t kFastVisits = 6144;
constexpr std::int64_t kFastVisitsPerChunk = 16;
constexpr std::int64_t kThoroughVisitsPerChunk = 4096;
// The greedy start first fills ranks to this share of the mean area: higher for many ranks, because
// the search then has little time for each pair of them.
constexpr std::int32_t kManyRanks = 16;
constexpr std::int64_t kSoftPercent = 85;
constexpr std::int64_t kSoftPercentManyRanks = 95;
// Prices of area above the target: low first, so that chunks come together, then high.
constexpr std::int32_t kLowPrice = 1;
constexpr std::int32_t kPrice = 32;
constexpr std::int32_t kRepairPrice = 4096;
// Largest area over the mean, in thousandths: of ranks, and of nodes, whose ranks are searched in
// turn.
constexpr std::int64_t kSpare = 19;
constexpr std::int64_t kSpareOfNodes = 5;
constexpr int kRepairsOfNodes = 8;
// Choices between nodes: how uneven these may be, and in how many groups of them rows are in order.
// Of 1 to 32 groups of 256 ranks, 4 and 8 left the shortest steps; one group is worth its time
// among few chunks. Where rows between nodes cost much, long searches are worth theirs.
constexpr std::int64_t kSparesOfChoices[] = {kSpareOfNodes, 20, 100};
constexpr std::int32_t kGroups[] = {1, 4, 8};
constexpr std::int32_t kMostChunksInOneGroup = 1024;
constexpr std::int32_t kMostRanksOfHeap = 256;  ///< of all it sends most, and is planned slowest
constexpr std::int32_t kSlowNetworkPrice = 12;
constexpr std::int32_t kMostChunksOfThorough = 256;  ///< it takes longer than all others above
constexpr std::int64_t kChoiceVisitsPerChunk = 512;  ///< up to kMostChunksOfVisits
constexpr std::int32_t kMostChunksOfVisits = 512;

struct Setting {
  const ChunkTable& table;
  PlacementLimits limits;
  std::vector<std::int32_t> order;  // chunks by falling area
  Assignment heap;
  AssignmentCost heap_cost;
  SearchTarget target;
  std::int64_t filled = 0;  ///< area of which the greedy start fills ranks to a share
};

AssignmentCost cost_of(const ChunkTable& table, const Assignment& rank_of,
                       const PlacementLimits& limits, const MonotoneKeys& keys) {
  return {largest_area(table, rank_of, limits.num_ranks),
          keys.remote_rows(rank_of, limits.num_ranks)};
}

AssignmentCost cost_of(const ChunkTable& table, const Assignment& rank_of,
                       const PlacementLimits& limits, const BlockKeys& /*keys*/) {
  return evaluate(table, rank_of, limits.num_ranks);
}

/// Balance within `spare` of the mean, or what min heap reaches where chunks are too coarse for it.
template <typename Keys>
Setting make_setting(const ChunkTable& table, const PlacementLimits& limits, const Keys& keys,
                     std::int64_t spare = kSpare) {
  Setting setting{table, limits, chunks_by_area(table), {}, {}, {}, {}};
  setting.heap = place_min_heap(table, limits, setting.order);
  setting.heap_cost = cost_of(table, setting.heap, limits, keys);
  const std::int64_t mean = setting.filled = table.total_area() / limits.num_ranks;
  setting.target.largest_area =
      std::max(setting.heap_cost.largest_area, mean + mean / 1000 * spare);
  setting.target.chunk_size = table.chunk_size;
  return setting;
}

struct Candidate {
  Assignment rank_of;
  AssignmentCost cost;
};

bool is_better(const AssignmentCost& a, const AssignmentCost& b, std::int64_t target) {
  const std::int64_t excess_a = std::max<std::int64_t>(0, a.largest_area - target);
  const std::int64_t excess_b = std::max<std::int64_t>(0, b.largest_area - target);
  if (excess_a != excess_b) return excess_a < excess_b;
  if (a.remote_rows != b.remote_rows) return a.remote_rows < b.remote_rows;
  return a.largest_area < b.largest_area;
}

/// The closed form within the target that moves least, if there is one.
template <typename Keys>
std::optional<Candidate> best_closed_form(const Setting& setting, const Keys& keys) {
  std::optional<Candidate> best;
  for (const auto form : {&place_sequential, &place_zigzag}) {
    Assignment rank_of = form(setting.table, setting.limits);
    const AssignmentCost cost = cost_of(setting.table, rank_of, setting.limits, keys);
    if (cost.largest_area > setting.target.largest_area) continue;
    if (!best || is_better(cost, best->cost, setting.target.largest_area)) {
      best = Candidate{std::move(rank_of), cost};
    }
  }
  return best;
}

/// Ranks between which chunks are exchanged: all, or those of a node.
std::int32_t ranks_together(const PlacementLimits& limits) {
  return limits.devices_per_node > 0 ? limits.devices_per_node : limits.num_ranks;
}

template <typename Keys>
Candidate search_from(const Setting& setting, const Keys& keys, const Assignment& start) {
  PairSearch<Keys> search(keys, setting.table, setting.limits, setting.target);
  search.start_from(start);
  const std::int32_t together = ranks_together(setting.limits);
  const std::int64_t visits = kFastVisits * (setting.limits.num_ranks / together) +
                              kFastVisitsPerChunk * setting.table.num_chunks();
  std::int64_t budget = visits;
  if (together <= kManyRanks) {
    search.run(kLowPrice, budget);
    // Balance comes first: the rest has its own share.
    budget = std::max(budget, visits / 2);
    search.mark_all_changed();
  }
  search.repair(kPrice, budget);
  search.run(kPrice, budget);
  budget = visits / 2;
  search.repair(kRepairPrice, budget);
  Assignment found = search.assignment();
  const AssignmentCost cost = cost_of(setting.table, found, setting.limits, keys);
  return {std::move(found), cost};
}

/// The load to which the greedy start fills ranks.
AreaCaps soft_caps(const Setting& setting) {
  const bool is_many = ranks_together(setting.limits) > kManyRanks;
  const std::int64_t percent = is_many ? kSoftPercentManyRanks : kSoftPercent;
  return {setting.filled / 100 * percent, setting.target.largest_area};
}

/// The request to a search.
struct Search {
  bool has_closed_forms = true;
  bool prefers_closed_forms = false;  ///< to min heap, where neither is better
  std::int64_t visits = 0;            ///< of the longer search, over what one costs; 0: none
};

template <typename Keys>
Candidate fast(const Setting& setting, const Keys& keys, Search how) {
  std::optional<Candidate> closed;
  if (how.has_closed_forms) closed = best_closed_form(setting, keys);
  const std::int64_t target = setting.target.largest_area;
  Candidate best{setting.heap, setting.heap_cost};
  const auto keep_better = [&](Candidate candidate) {
    if (is_better(candidate.cost, best.cost, target)) best = std::move(candidate);
  };
  if (closed && how.prefers_closed_forms && !is_better(best.cost, closed->cost, target)) {
    best = *std::move(closed);
  } else if (closed) {
    keep_better(std::move(*closed));
  } else {
    AffinityGreedy<Keys> greedy(keys, setting.table, setting.limits);
    keep_better(search_from(setting, keys, greedy.run(setting.order, soft_caps(setting))));
  }
  return best;
}

/// The result of `fast`, after a longer search.
template <typename Keys>
Candidate slow(const Setting& setting, const Keys& keys, Candidate best, std::int64_t visits) {
  PairSearch<Keys> search(keys, setting.table, setting.limits, setting.target);
  search.start_from(best.rank_of);
  improve_by_kicks(search, kPrice, visits / keys.visit_cost());
  Assignment found = search.assignment();
  const AssignmentCost cost = cost_of(setting.table, found, setting.limits, keys);
  if (is_better(cost, best.cost, setting.target.largest_area)) best = {std::move(found), cost};
  return best;
}

template <typename Keys>
Candidate run(const Setting& setting, const Keys& keys, Search how) {
  Candidate best = fast(setting, keys, how);
  return how.visits > 0 ? slow(setting, keys, std::move(best), how.visits) : best;
}

std::vector<std::int32_t> nodes_of(const Assignment& rank_of, std::int32_t devices_per_node) {
  std::vector<std::int32_t> nodes;
  nodes.reserve(rank_of.size());
  for (const std::int32_t rank : rank_of) nodes.push_back(rank / devices_per_node);
  return nodes;
}

/// The limits of nodes, as if these were ranks.
PlacementLimits limits_of_nodes(const PlacementLimits& limits, std::int32_t devices_per_node) {
  return {.num_ranks = limits.num_ranks / devices_per_node,
          .max_chunks = limits.max_chunks * devices_per_node};
}

/// The chunks of nodes to the ranks of each.
template <typename Keys>
Candidate run_inside(Setting inside, const Keys& keys, const Assignment& node_of,
                     std::int32_t devices_per_node) {
  inside.limits.devices_per_node = devices_per_node;
  AffinityGreedy<Keys> greedy(keys, inside.table, inside.limits, node_of);
  return search_from(inside, keys, greedy.run(inside.order, soft_caps(inside)));
}

/// Chunks to nodes, as if these were ranks, then to the ranks of each node.
template <typename Keys>
Candidate run_by_node(const Setting& setting, const Keys& keys, Search how,
                      std::int32_t devices_per_node) {
  const PlacementLimits& limits = setting.limits;
  const PlacementLimits of_nodes = limits_of_nodes(limits, devices_per_node);
  const Setting nodes = make_setting(setting.table, of_nodes, keys, kSpareOfNodes);
  const Assignment node_of = run(nodes, keys, how).rank_of;
  Candidate found = run_inside(setting, keys, node_of, devices_per_node);
  if (found.cost.largest_area <= setting.target.largest_area) return found;
  // Some node has too few light chunks beside its heavy ones: its ranks exchange with any others.
  PairSearch<Keys> search(keys, setting.table, limits, setting.target);
  search.start_from(found.rank_of);
  std::int64_t budget = kFastVisits + kFastVisitsPerChunk * setting.table.num_chunks();
  for (int i = 0; i < kRepairsOfNodes; ++i) search.repair(kRepairPrice, budget);
  found.rank_of = search.assignment();
  found.cost = cost_of(setting.table, found.rank_of, limits, keys);
  return found;
}

/// Adds the price of rows that enter nodes to the remote rows.
template <typename Keys>
void add_crossings(const Setting& setting, const Keys& keys, const NodeShape& nodes,
                   Candidate& candidate) {
  const PlacementLimits of_nodes{.num_ranks = setting.limits.num_ranks / nodes.devices_per_node};
  const std::int64_t rows =
      cost_of(setting.table, nodes_of(candidate.rank_of, nodes.devices_per_node), of_nodes, keys)
          .remote_rows;
  candidate.cost.remote_rows += (nodes.crossing_price - 1) * rows;
}

template <typename Keys>
Assignment best_of(const ChunkTable& table, const PlacementLimits& limits, const Keys& keys,
                   Search how, const NodeShape& nodes) {
  const Setting setting = make_setting(table, limits, keys);
  Candidate best = run(setting, keys, how);
  const std::int32_t node = nodes.devices_per_node;
  const bool has_nodes = node > 1 && node < limits.num_ranks && limits.num_ranks % node == 0;
  if (!has_nodes) return best.rank_of;
  Candidate by_node = run_by_node(setting, keys, how, node);
  add_crossings(setting, keys, nodes, best);
  add_crossings(setting, keys, nodes, by_node);
  const bool is_cheaper = is_better(by_node.cost, best.cost, setting.target.largest_area);
  return is_cheaper ? by_node.rank_of : best.rank_of;
}

/// The divisor of `count` that is nearest to `wanted`, the lower of two.
std::int32_t divisor_near(std::int32_t wanted, std::int32_t count) {
  std::int32_t found = 1;
  for (std::int32_t i = 2; i <= count; ++i) {
    if (count % i == 0 && std::abs(i - wanted) < std::abs(found - wanted)) found = i;
  }
  return found;
}

/// Does what place_to_choose does for any mask but one causal document.
template <typename Keys>
std::vector<Assignment> search_to_choose(const ChunkTable& table, const PlacementLimits& limits,
                                         const Keys& keys, const NodeShape& nodes) {
  std::vector<Assignment> found{place_zigzag(table, limits), place_sequential(table, limits)};
  const auto add = [&](Assignment other) {
    if (std::ranges::find(found, other) == found.end()) found.push_back(std::move(other));
  };
  const bool is_last_full = limits.num_ranks % nodes.devices_per_node == 0;
  const std::int32_t node = is_last_full ? nodes.devices_per_node : 1;
  const PlacementLimits of_nodes = limits_of_nodes(limits, node);
  const Setting ranks = make_setting(table, limits, keys);
  const std::int32_t num_chunks = table.num_chunks();
  const bool is_slow = nodes.crossing_price >= kSlowNetworkPrice;
  const auto inside = [&](Setting of, const Assignment& node_of, std::int32_t size, bool fills) {
    const std::int64_t mean = largest_area(table, node_of, of.limits.num_ranks / size) / size;
    of.target.largest_area = std::max(of.target.largest_area, mean + mean / 1000 * kSpare);
    if (fills) of.filled = of.target.largest_area;
    return run_inside(std::move(of), keys, node_of, size).rank_of;
  };
  if (limits.num_ranks <= kMostRanksOfHeap) add(ranks.heap);
  Search how{.prefers_closed_forms = true};
  add(best_of(table, limits, keys, how, nodes));
  for (const std::int64_t spare : kSparesOfChoices) {
    const Setting uneven = make_setting(table, of_nodes, keys, spare);
    const bool is_first = spare == kSpareOfNodes;
    how.visits =
        is_slow && is_first ? kChoiceVisitsPerChunk * std::min(num_chunks, kMostChunksOfVisits) : 0;
    add(inside(ranks, run(uneven, keys, how).rank_of, node, is_first));
    // In order the ranks of few nodes would own what all of a tree see.
    if (!is_first || !std::is_same_v<Keys, MonotoneKeys>) continue;
    std::vector<std::int32_t> sizes;
    for (const std::int32_t wanted : kGroups) {
      if (wanted == 1 && num_chunks > kMostChunksInOneGroup) continue;
      const std::int32_t size = of_nodes.num_ranks / divisor_near(wanted, of_nodes.num_ranks);
      if (std::ranges::find(sizes, size) != sizes.end()) continue;
      sizes.push_back(size);
      const Assignment group_of = place_sequential(table, limits_of_nodes(of_nodes, size));
      add(inside(ranks, inside(uneven, group_of, size, true), node, true));
    }
  }
  if (!is_slow || num_chunks > kMostChunksOfThorough) return found;
  add(best_of(table, limits, keys, {.visits = kThoroughVisitsPerChunk * num_chunks}, nodes));
  return found;
}

Assignment search(const ChunkTable& table, const PlacementLimits& limits, Search how,
                  const NodeShape& nodes) {
  const std::optional<MonotoneKeys> keys = MonotoneKeys::from(table);
  if (!keys) return best_of(table, limits, BlockKeys(table), how, nodes);
  return best_of(table, limits, *keys, how, nodes);
}

}  // namespace

Assignment place_affinity(const ChunkTable& table, const PlacementLimits& limits,
                          const NodeShape& nodes) {
  return search(table, limits, {.has_closed_forms = false}, nodes);
}

Assignment place_automatic(const ChunkTable& table, const PlacementLimits& limits,
                           const NodeShape& nodes) {
  const std::optional<MonotoneKeys> keys = MonotoneKeys::from(table);
  if (keys && keys->is_one_causal_document(table)) return place_zigzag(table, limits);
  if (!keys) return best_of(table, limits, BlockKeys(table), {}, nodes);
  return best_of(table, limits, *keys, {}, nodes);
}

Assignment place_thorough(const ChunkTable& table, const PlacementLimits& limits,
                          const NodeShape& nodes) {
  return search(table, limits, {.visits = kThoroughVisitsPerChunk * table.num_chunks()}, nodes);
}

std::vector<Assignment> place_to_choose(const ChunkTable& table, const PlacementLimits& limits,
                                        const NodeShape& nodes) {
  const std::optional<MonotoneKeys> keys = MonotoneKeys::from(table);
  if (!keys) return search_to_choose(table, limits, BlockKeys(table), nodes);
  if (!keys->is_one_causal_document(table)) return search_to_choose(table, limits, *keys, nodes);
  return {place_zigzag(table, limits), place_sequential(table, limits)};
}

}  // namespace magi
