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

struct Setting {
  const ChunkTable& table;
  const PlacementLimits& limits;
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

/// Balance within 1.9 % of the mean, or what min heap reaches where chunks are too coarse for that.
template <typename Keys>
Setting make_setting(const ChunkTable& table, const PlacementLimits& limits, const Keys& keys) {
  Setting setting{table, limits, chunks_by_area(table), {}, {}, {}};
  setting.heap = place_min_heap(table, limits, setting.order);
  setting.heap_cost = cost_of(table, setting.heap, limits, keys);
  const std::int64_t mean = table.total_area() / limits.num_ranks;
  setting.target.largest_area = std::max(setting.heap_cost.largest_area, mean + mean / 1000 * 19);
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

template <typename Keys>
Candidate search_from(const Setting& setting, const Keys& keys, const Assignment& start) {
  PairSearch<Keys> search(keys, setting.table, setting.limits, setting.target);
  search.start_from(start);
  const std::int64_t visits = kFastVisits + kFastVisitsPerChunk * setting.table.num_chunks();
  std::int64_t budget = visits;
  if (setting.limits.num_ranks <= kManyRanks) {
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
    const std::int64_t mean = setting.table.total_area() / setting.limits.num_ranks;
    const bool is_many = setting.limits.num_ranks > kManyRanks;
    const std::int64_t percent = is_many ? kSoftPercentManyRanks : kSoftPercent;
    const AreaCaps caps{mean / 100 * percent, setting.target.largest_area};
    const Assignment start = greedy.run(setting.order, caps);
    keep_better(search_from(setting, keys, start));
  }
  return best;
}

template <typename Keys>
Assignment automatic(const ChunkTable& table, const PlacementLimits& limits, const Keys& keys) {
  const Setting setting = make_setting(table, limits, keys);
  return fast(setting, keys, best_closed_form(setting, keys)).rank_of;
}

template <typename Keys>
Assignment affinity(const ChunkTable& table, const PlacementLimits& limits, const Keys& keys) {
  return fast(make_setting(table, limits, keys), keys, std::nullopt).rank_of;
}

template <typename Keys>
Assignment thorough(const ChunkTable& table, const PlacementLimits& limits, const Keys& keys) {
  const Setting setting = make_setting(table, limits, keys);
  Candidate best = fast(setting, keys, best_closed_form(setting, keys));
  PairSearch<Keys> search(keys, table, limits, setting.target);
  search.start_from(best.rank_of);
  improve_by_kicks(search, kPrice,
                   kThoroughVisitsPerChunk * table.num_chunks() / keys.visit_cost());
  Assignment found = search.assignment();
  const AssignmentCost cost = cost_of(table, found, limits, keys);
  return is_better(cost, best.cost, setting.target.largest_area) ? found : best.rank_of;
}

}  // namespace

Assignment place_affinity(const ChunkTable& table, const PlacementLimits& limits) {
  const std::optional<MonotoneKeys> keys = MonotoneKeys::from(table);
  return keys ? affinity(table, limits, *keys) : affinity(table, limits, BlockKeys(table));
}

Assignment place_automatic(const ChunkTable& table, const PlacementLimits& limits) {
  const std::optional<MonotoneKeys> keys = MonotoneKeys::from(table);
  if (!keys) return automatic(table, limits, BlockKeys(table));
  if (keys->is_one_causal_document(table)) return place_zigzag(table, limits);
  return automatic(table, limits, *keys);
}

Assignment place_thorough(const ChunkTable& table, const PlacementLimits& limits) {
  const std::optional<MonotoneKeys> keys = MonotoneKeys::from(table);
  return keys ? thorough(table, limits, *keys) : thorough(table, limits, BlockKeys(table));
}

}  // namespace magi
