// SPDX-License-Identifier: Apache-2.0
#include "plan/travel/heads.hpp"

#include <utility>

#include "plan/cost/flat.hpp"
#include "plan/tables/needs.hpp"
#include "plan/travel/build.hpp"
#include "plan/travel/fastest.hpp"
#include "plan/travel/queries.hpp"
#include "plan/value/config.hpp"
#include "plan/value/hops.hpp"

namespace magi::planner {
namespace {

/// The rows of each group of neighbouring ranks, as if it were one rank.
Layout layout_of_groups(const Placement& placement, std::int32_t group_size) {
  std::vector<std::int32_t> chunk_group = placement.chunk_rank;
  for (std::int32_t& rank : chunk_group) rank /= group_size;
  return make_layout(placement_from_chunks(placement.num_rows, placement.chunk_size,
                                           placement.num_ranks / group_size,
                                           std::move(chunk_group)));
}

/// The slices that each group computes for its own queries.
std::vector<WorkPiece> pieces_of_own_queries(const Mask& mask, const Layout& layout_q,
                                             const Layout& layout_k) {
  const Needs needs = find_needs(mask, layout_q, layout_k);
  std::vector<WorkPiece> pieces;
  const auto num_groups = static_cast<std::int32_t>(layout_q.rank_rows.size());
  for (std::int32_t group = 0; group < num_groups; ++group) {
    for (const std::int32_t run : layout_q.runs_of(group)) {
      for (const BandSlice& cut : needs.cuts_of_run(run)) pieces.push_back({cut, group});
    }
  }
  return pieces;
}

/// The slices that each group computes, in rows of the sequence.
std::vector<WorkPiece> pieces_of_groups(const Plan& plan) {
  const std::int32_t group_size = plan.num_head_shares;
  const std::int32_t num_groups = plan.config.num_ranks / group_size;
  std::vector<WorkPiece> pieces;
  if (num_groups == 1) {
    for (const BandSlice& slice : plan.mask.slices) {
      const BandSlice tight = shrink(slice);
      if (tight.q0 < tight.q1) pieces.push_back({tight, 0});
    }
    return pieces;
  }
  const Layout layout_q = layout_of_groups(plan.placement_q, group_size);
  const Layout layout_k = layout_of_groups(plan.placement_k, group_size);
  // The search takes time with the square of its ranks.
  return num_groups > kMostRanksMovingQueries
             ? pieces_of_own_queries(plan.mask, layout_q, layout_k)
             : find_pieces(plan.mask, layout_q, layout_k, plan.config);
}

/// The pieces of a group for each of its ranks, in per-share rows of the rank's share.
std::vector<WorkPiece> pieces_of_shares(const Plan& plan) {
  const std::vector<WorkPiece> pieces = pieces_of_groups(plan);
  const auto rows_q = static_cast<std::int32_t>(rows_per_share(plan.placement_q));
  const auto rows_k = static_cast<std::int32_t>(rows_per_share(plan.placement_k));
  std::vector<WorkPiece> flat;
  flat.reserve(pieces.size() * static_cast<std::size_t>(plan.num_head_shares));
  for (auto first = pieces.begin(); first != pieces.end();) {
    auto end = first;
    while (end != pieces.end() && end->rank == first->rank) ++end;
    for (std::int32_t share = 0; share < plan.num_head_shares; ++share) {
      const std::int32_t rank = first->rank * plan.num_head_shares + share;
      for (auto piece = first; piece != end; ++piece) {
        flat.push_back({shift(piece->slice, share * rows_q, share * rows_k), rank});
      }
    }
    first = end;
  }
  return flat;
}

}  // namespace

PlanLoads plan_heads(std::int32_t num_shares, Plan& plan) {
  plan.num_head_shares = num_shares;
  validate_shares(plan);
  const std::vector<WorkPiece> pieces = pieces_of_shares(plan);
  Plan flat = flat_shell(plan);
  const Layout layout_q = make_layout(flat.placement_q);
  const Layout layout_k = make_layout(flat.placement_k);
  const auto build = [&](std::int32_t degree) {
    build_work({.layout_q = layout_q,
                .layout_k = layout_k,
                .pieces = pieces,
                .degree = degree,
                .is_collecting = true},
               flat);
    choose_hops(flat);
  };
  PlanLoads loads = build_asked_for(flat, build, {1, 2, 4, 8}, num_shares);
  plan.exchanges = std::move(flat.exchanges);
  plan.ranks = std::move(flat.ranks);
  plan.transfers = std::move(flat.transfers);
  return loads;
}

}  // namespace magi::planner
