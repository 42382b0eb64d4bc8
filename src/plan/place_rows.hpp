// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "magi/plan.hpp"

// Placements beyond those of their names, a source for each.
namespace magi::planner {

/// Places keys that do not travel with queries of the same row. Auto puts key chunks where placed
/// queries see most of their rows, largest first, within the count that the config allows a rank;
/// any other algorithm places the transposed mask.
Placement place_keys(const Mask& mask, const Placement& placement_q, const PlacementConfig& config);

/// Swaps tried for each chunk: to search for the fastest plan, and to see what may be gained. A
/// quarter takes a third of a millisecond for 64k rows on 8 ranks and leaves steps some percent
/// longer.
inline constexpr std::int64_t kSwapsPerChunk = 32;
inline constexpr std::int64_t kFewSwapsPerChunk = 8;

/// A placement of queries and keys together with chunks exchanged between ranks, so that the
/// predicted step of keys alone is short on the slowest rank: area and remote rows are weighed by
/// what they cost, and of rows what the busiest link carries counts, not the sum. Ranks keep their
/// counts of chunks. Random swaps, kept where they do not cost, from a fixed stream of numbers and
/// with bounded work: the same inputs give the same result everywhere. Where runs count
/// (asks_for_runs), stretches of chunks are exchanged too, each run has its price, and those above
/// the bound become fewer, never more. Returns `start` where the search has nothing to go by: one
/// rank, more than 64, several nodes unless runs count, masks whose chunks see many separate ranges
/// of keys, or more chunks than the work allows.
Placement place_for_step(const Mask& mask, const PlanConfig& config, const Placement& start,
                         std::int64_t swaps_per_chunk = kSwapsPerChunk);

/// Placements to choose from where runs count (asks_for_runs), those that keep the bound: that of
/// the config and, if it searches, contiguous rows, the zigzag, the same over larger chunks of two
/// or more of its chunks, and each of these after place_for_step. All have the same chunks. Throws
/// InvalidArgument if none keeps it.
std::vector<Placement> placements_for_runs(const Mask& mask, const PlanConfig& config);

/// Returns those that keep the bound; throws InvalidArgument if none does.
std::vector<Placement> require_few_runs(const Mask& mask, const PlanConfig& config,
                                        std::vector<Placement> placements);

}  // namespace magi::planner
