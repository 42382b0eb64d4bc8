// SPDX-License-Identifier: Apache-2.0
#include "plan/work_search.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "base/check.hpp"
#include "plan/work_named.hpp"

namespace magi {
namespace planner {
namespace {

constexpr std::int32_t kBudgetsAtOnce = 4;

/// A search by its name.
struct NamedSearch {
  const char* name;
  std::vector<std::int32_t> (*share)(const WorkGrid& grid, std::int32_t num_ranks,
                                     const RowCosts& costs);
  bool is_evened = false;  ///< tiles are split until areas are even
  std::int64_t parts_per_rank = 4;
};

template <auto Share>
std::vector<std::int32_t> scaled(const WorkGrid& grid, std::int32_t num_ranks,
                                 const RowCosts& costs) {
  if (grid.tiles.empty()) return {};
  return Share(WorkScale(grid, num_ranks, costs));
}

/// In the order of WorkSearch.
constexpr std::array<NamedSearch, kNumWorkSearches> kSearches = {{
    {.name = "threshold_accepting",
     .share = [](const WorkGrid& grid, std::int32_t num_ranks,
                 const RowCosts& costs) { return share_work(grid, num_ranks, costs, {}); },
     .is_evened = true},
    {.name = "non_communication_qo", .share = scaled<share_to_owners>},
    {.name = "greedy_random_grid", .share = scaled<share_by_random_grids>},
    {.name = "simplex_network_flow",
     .share = scaled<[](const WorkScale& work) { return share_by_flow(work, FlowGrain::Fine); }>,
     .is_evened = true},
    {.name = "fast_simplex_network_flow",
     .share = scaled<[](const WorkScale& work) { return share_by_flow(work, FlowGrain::Coarse); }>,
     .is_evened = true,
     .parts_per_rank = 2},
    {.name = "binary_greedy",
     .share = scaled<[](const WorkScale& work) { return share_greedily(work, 1); }>},
    {.name = "binary_greedy_parallel",
     .share = scaled<[](const WorkScale& work) { return share_greedily(work, kBudgetsAtOnce); }>},
}};

const NamedSearch& named(WorkSearch search) {
  const auto index = static_cast<std::size_t>(search);
  if (index >= kSearches.size()) {
    throw invalid("work_search", static_cast<std::int32_t>(search),
                  "0 to " + std::to_string(kSearches.size() - 1));
  }
  return kSearches[index];
}

}  // namespace

std::int64_t parts_per_rank(WorkSearch search) { return named(search).parts_per_rank; }

std::vector<WorkPiece> search_work(WorkSearch search, const WorkGrid& grid, std::int32_t num_ranks,
                                   const RowCosts& costs) {
  const NamedSearch& chosen = named(search);
  const std::vector<std::int32_t> rank_of = chosen.share(grid, num_ranks, costs);
  if (chosen.is_evened) return even_out(grid, rank_of, num_ranks, costs);
  return whole_tiles(grid, rank_of, num_ranks);
}

}  // namespace planner

const char* work_search_name(WorkSearch search) { return planner::named(search).name; }

WorkSearch work_search_from_name(std::string_view name) {
  const auto found = std::ranges::find(planner::kSearches, name, &planner::NamedSearch::name);
  if (found == planner::kSearches.end()) {
    std::string names;
    for (const planner::NamedSearch& search : planner::kSearches) {
      names += (names.empty() ? "" : ", ") + std::string(search.name);
    }
    throw invalid("work_search", name, names);
  }
  return static_cast<WorkSearch>(found - planner::kSearches.begin());
}

}  // namespace magi
