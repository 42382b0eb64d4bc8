// SPDX-License-Identifier: Apache-2.0
#include "plan/travel/queries.hpp"

#include <algorithm>

#include "plan/travel/build.hpp"
#include "plan/travel/fastest.hpp"
#include "plan/travel/grid.hpp"
#include "plan/value/hops.hpp"

namespace magi::planner {
namespace {

constexpr std::int32_t kSumBytes = 4;
/// Parts of a rank's run of rows in the grid, about: finer ones save few bytes and take longer.
constexpr std::int64_t kPartsPerRank = 4;

}  // namespace

RowCosts row_costs(const PlanConfig& config) {
  const Range heads{0, config.num_heads_kv};
  const auto bytes = [&](Role role, bool is_backward) {
    const std::int64_t row = bytes_per_row(config, {.role = role, .heads = heads}, is_backward);
    // Partial results and gradients travel as they are summed, in float32 or float64.
    if (!is_returning(role)) return row;
    return row / config.element_bytes * std::max(config.element_bytes, kSumBytes);
  };
  // lse goes back with a result, and out again with a query of the backward.
  constexpr std::int64_t kStatisticsBytes = 2 * sizeof(float);
  return {.q = bytes(Role::Queries, false) + bytes(Role::Results, false) +
               bytes(Role::Queries, true) + bytes(Role::QueryGradients, true) +
               kStatisticsBytes * config.num_heads_q,
          .k = bytes(Role::KeysValues, false) + bytes(Role::KeysValues, true) +
               bytes(Role::KeyGradients, true)};
}

std::vector<WorkPiece> find_pieces(const Mask& mask, const Layout& layout_q, const Layout& layout_k,
                                   const PlanConfig& config) {
  const auto num_ranks = static_cast<std::int32_t>(layout_q.rank_rows.size());
  const std::int64_t rows = std::max(layout_q.runs.back().end, layout_k.runs.back().end);
  const auto part_rows =
      static_cast<std::int32_t>(std::max<std::int64_t>(1, rows / (kPartsPerRank * num_ranks)));
  const WorkGrid grid = make_work_grid(mask, layout_q, layout_k, part_rows);
  const RowCosts costs = row_costs(config);
  return even_out(grid, share_work(grid, num_ranks, costs, {}), num_ranks, costs);
}

PlanLoads plan_queries(const Layout& layout_q, const Layout& layout_k, Plan& plan) {
  const std::vector<WorkPiece> pieces = find_pieces(plan.mask, layout_q, layout_k, plan.config);
  const auto build = [&](std::int32_t degree) {
    build_work({.layout_q = layout_q, .layout_k = layout_k, .pieces = pieces, .degree = degree},
               plan);
    choose_hops(plan);
  };
  return build_asked_for(plan, build, {0, 1, 2, 4, 8});
}

}  // namespace magi::planner
