// SPDX-License-Identifier: Apache-2.0
#include "plan/placement/automatic.hpp"

#include <algorithm>
#include <optional>
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

struct Setting {
  const ChunkTable& table;
  PlacementLimits limits;
  std::vector<std::int32_t> order;  // chunks by falling area
  Assignment heap;
  AssignmentCost heap_cost;
  SearchTarget target;
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
  Setting setting{table, limits, chunks_by_area(table), {}, {}, {}};
  setting.heap = place_min_heap(table, limits, setting.order);
  setting.heap_cost = cost_of(table, setting.heap, limits, keys);
  const std::int64_t mean = table.total_area() / limits.num_ranks;
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
  const std::int64_t mean = setting.table.total_area() / setting.limits.num_ranks;
  const bool is_many = ranks_together(setting.limits) > kManyRanks;
  const std::int64_t percent = is_many ? kSoftPercentManyRanks : kSoftPercent;
  return {mean / 100 * percent, setting.target.largest_area};
}

template <typename Keys>
Candidate fast(const Setting& setting, const Keys& keys, std::optional<Candidate> closed) {
  const std::int64_t target = setting.target.largest_area;
  Candidate best{setting.heap, setting.heap_cost};
  const auto keep_better = [&](Candidate candidate) {
    if (is_better(candidate.cost, best.cost, target)) best = std::move(candidate);
  };
  if (closed) {
    keep_better(std::move(*closed));
  } else {
    AffinityGreedy<Keys> greedy(keys, setting.table, setting.limits);
    keep_better(search_from(setting, keys, greedy.run(setting.order, soft_caps(setting))));
  }
  return best;
}

/// The result of `fast`, after a longer search.
template <typename Keys>
Candidate slow(const Setting& setting, const Keys& keys, Candidate best) {
  PairSearch<Keys> search(keys, setting.table, setting.limits, setting.target);
  search.start_from(best.rank_of);
  improve_by_kicks(search, kPrice,
                   kThoroughVisitsPerChunk * setting.table.num_chunks() / keys.visit_cost());
  Assignment found = search.assignment();
  const AssignmentCost cost = cost_of(setting.table, found, setting.limits, keys);
  if (is_better(cost, best.cost, setting.target.largest_area)) best = {std::move(found), cost};
  return best;
}

/// The request to a search.
struct Search {
  bool has_closed_forms = true;
  bool is_thorough = false;
};

template <typename Keys>
Candidate run(const Setting& setting, const Keys& keys, Search how) {
  Candidate best =
      fast(setting, keys, how.has_closed_forms ? best_closed_form(setting, keys) : std::nullopt);
  return how.is_thorough ? slow(setting, keys, std::move(best)) : best;
}

std::vector<std::int32_t> nodes_of(const Assignment& rank_of, std::int32_t devices_per_node) {
  std::vector<std::int32_t> nodes;
  nodes.reserve(rank_of.size());
  for (const std::int32_t rank : rank_of) nodes.push_back(rank / devices_per_node);
  return nodes;
}

/// Chunks to nodes, as if these were ranks, then to the ranks of each node.
template <typename Keys>
Candidate run_by_node(const Setting& setting, const Keys& keys, Search how,
                      std::int32_t devices_per_node) {
  const PlacementLimits& limits = setting.limits;
  const PlacementLimits of_nodes{.num_ranks = limits.num_ranks / devices_per_node,
                                 .max_chunks = limits.max_chunks * devices_per_node};
  const Setting nodes = make_setting(setting.table, of_nodes, keys, kSpareOfNodes);
  const Assignment node_of = run(nodes, keys, how).rank_of;
  Setting inside = setting;
  inside.limits.devices_per_node = devices_per_node;
  AffinityGreedy<Keys> greedy(keys, inside.table, inside.limits, node_of);
  Candidate found = search_from(inside, keys, greedy.run(inside.order, soft_caps(inside)));
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
  return search(table, limits, {.is_thorough = true}, nodes);
}

}  // namespace magi
