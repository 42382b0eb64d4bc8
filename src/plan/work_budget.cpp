// SPDX-License-Identifier: Apache-2.0
#include "plan/work_budget.hpp"

#include <algorithm>
#include <future>
#include <numeric>
#include <system_error>
#include <tuple>

namespace magi::planner {
namespace {

bool has(RankSet ranks, std::int32_t rank) { return (ranks >> rank & 1u) != 0; }

/// A part that could be sent to a rank.
struct Edge {
  bool is_queries = false;
  std::int32_t part = 0;
  std::int32_t rank = 0;
  std::int64_t cost = 0;
  std::int64_t value_per_cost = 0;
};

class RowChooser {
 public:
  explicit RowChooser(const WorkScale& work)
      : work_(work),
        sets_(owned_rows(work)),
        sent_(static_cast<std::size_t>(work.num_ranks)),
        received_(sent_) {}

  void spend(std::int64_t budget) {
    std::vector<Edge> edges = find_edges();
    std::ranges::sort(edges, [](const Edge& a, const Edge& b) {
      return std::tuple(-a.value_per_cost, a.is_queries, a.part, a.rank) <
             std::tuple(-b.value_per_cost, b.is_queries, b.part, b.rank);
    });
    for (const Edge& edge : edges) take(edge, budget);
  }
  ReadSets sets() && { return std::move(sets_); }

 private:
  const std::vector<WorkPart>& parts(bool is_queries) const {
    return is_queries ? work_.grid.q : work_.grid.k;
  }

  /// Area that a part is worth to each rank, [parts, ranks], of both sides.
  void count_values() {
    const auto ranks = static_cast<std::size_t>(work_.num_ranks);
    value_q_.assign(work_.grid.q.size() * ranks, 0);
    value_k_.assign(work_.grid.k.size() * ranks, 0);
    for (std::size_t t = 0; t < work_.grid.tiles.size(); ++t) {
      const WorkTile& tile = work_.grid.tiles[t];
      const RankSet with_q = sets_.q[static_cast<std::size_t>(tile.q)];
      const RankSet with_k = sets_.k[static_cast<std::size_t>(tile.k)];
      const std::int64_t whole = work_.areas[t];
      const std::int64_t share = whole / work_.num_ranks;
      std::int64_t* to_q = &value_q_[static_cast<std::size_t>(tile.q) * ranks];
      std::int64_t* to_k = &value_k_[static_cast<std::size_t>(tile.k) * ranks];
      for (std::int32_t rank = 0; rank < work_.num_ranks; ++rank) {
        to_q[rank] += has(with_k, rank) ? whole : share;
        to_k[rank] += has(with_q, rank) ? whole : share;
      }
    }
  }

  std::vector<Edge> find_edges() {
    count_values();
    std::vector<Edge> edges;
    for (const bool is_queries : {false, true}) {
      const auto& sets = is_queries ? sets_.q : sets_.k;
      const auto& costs = is_queries ? work_.cost_q : work_.cost_k;
      const std::int64_t* value = is_queries ? value_q_.data() : value_k_.data();
      for (std::size_t part = 0; part < sets.size(); ++part) {
        for (std::int32_t rank = 0; rank < work_.num_ranks; ++rank, ++value) {
          if (has(sets[part], rank) || *value == 0) continue;
          const std::int64_t cost = std::max<std::int64_t>(1, costs[part]);
          edges.push_back({is_queries, static_cast<std::int32_t>(part), rank, cost,
                           *value * kShardUnit / cost});
        }
      }
    }
    return edges;
  }

  void take(const Edge& edge, std::int64_t budget) {
    const auto part = static_cast<std::size_t>(edge.part);
    auto& sent = sent_[static_cast<std::size_t>(parts(edge.is_queries)[part].owner)];
    auto& received = received_[static_cast<std::size_t>(edge.rank)];
    if (sent + edge.cost > budget || received + edge.cost > budget) return;
    sent += edge.cost;
    received += edge.cost;
    (edge.is_queries ? sets_.q : sets_.k)[part] |= only(edge.rank);
  }

  const WorkScale& work_;
  ReadSets sets_;
  std::vector<std::int64_t> sent_;  ///< by rank
  std::vector<std::int64_t> received_;
  std::vector<std::int64_t> value_q_;
  std::vector<std::int64_t> value_k_;
};

/// The first of ascending budgets that suffices, all tried side by side; their number where none
/// does. The result does not depend on how many threads there are.
std::size_t first_enough(const std::vector<std::int64_t>& budgets, const BudgetTry& is_enough) {
  std::vector<std::future<bool>> others;
  for (std::size_t i = 1; i < budgets.size(); ++i) {
    const auto run = [&is_enough, budget = budgets[i]] { return is_enough(budget); };
    try {
      others.push_back(std::async(std::launch::async, run));
    } catch (const std::system_error&) {  // no thread to be had: it runs when it is asked for
      others.push_back(std::async(std::launch::deferred, run));
    }
  }
  std::size_t first = is_enough(budgets.front()) ? 0 : budgets.size();
  for (std::size_t i = 1; i < budgets.size(); ++i) {
    if (others[i - 1].get()) first = std::min(first, i);
  }
  return first;
}

}  // namespace

ReadSets owned_rows(const WorkScale& work) {
  ReadSets sets;
  for (const WorkPart& part : work.grid.q) sets.q.push_back(only(part.owner));
  for (const WorkPart& part : work.grid.k) sets.k.push_back(only(part.owner));
  return sets;
}

ReadSets choose_rows(const WorkScale& work, std::int64_t budget, std::int32_t num_rounds) {
  RowChooser chooser(work);
  for (std::int32_t round = 1; round <= num_rounds; ++round) {
    chooser.spend(budget * round / num_rounds);
  }
  return std::move(chooser).sets();
}

std::int64_t largest_budget(const WorkScale& work) {
  std::vector<std::int64_t> owned(static_cast<std::size_t>(work.num_ranks));
  for (std::size_t i = 0; i < work.grid.q.size(); ++i) {
    owned[static_cast<std::size_t>(work.grid.q[i].owner)] += work.cost_q[i] + 1;
  }
  for (std::size_t i = 0; i < work.grid.k.size(); ++i) {
    owned[static_cast<std::size_t>(work.grid.k[i].owner)] += work.cost_k[i] + 1;
  }
  const std::int64_t all = std::accumulate(owned.begin(), owned.end(), std::int64_t{0});
  return std::max(all, std::ranges::max(owned) * (work.num_ranks - 1));
}

std::optional<std::int64_t> least_budget(const WorkScale& work, const BudgetSearch& search,
                                         const BudgetTry& is_enough) {
  std::int64_t high = largest_budget(work);
  std::int64_t low = -1;  // below 0 nothing suffices
  if (!is_enough(high)) return std::nullopt;
  while (high - low > std::max<std::int64_t>(1, search.width)) {
    std::vector<std::int64_t> budgets;
    for (std::int64_t i = 1; i <= search.num_at_once; ++i) {
      const std::int64_t budget = low + (high - low) * i / (search.num_at_once + 1);
      if (budget > low && (budgets.empty() || budget > budgets.back())) budgets.push_back(budget);
    }
    const std::size_t first = first_enough(budgets, is_enough);
    if (first > 0) low = budgets[first - 1];
    if (first < budgets.size()) high = budgets[first];
  }
  return high;
}

}  // namespace magi::planner
